//! A client of the key-value service in 20 lines. Start a server, then run it:
//!
//! ```text
//! cargo run --release -- kv serve --at shm:kv
//! cargo run --release -p dunlin-kv --example client shm:kv
//! ```

use std::error::Error;
use std::rc::Rc;

use dunlin_kv::KvClient;
use dunlin_kv::client::ClientConfig;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let server: Addr = std::env::args().nth(1).ok_or("give an address: shm:kv or udp://127.0.0.1:7700")?.parse()?;
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?);
    endpoint.block_on(async {
        let client = KvClient::connect(&endpoint, &server, ClientConfig::default()).await?;
        client.set(b"bird", b"dunlin").await?;
        client.set(b"count", b"41").await?;
        println!("count is {} now", client.incr(b"count", 1).await?.value);
        for (key, value) in ["bird", "fish"].iter().zip(client.multi_get(&["bird", "fish"]).await?) {
            println!("{key}: {:?}", value.map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        Ok(())
    })
}
