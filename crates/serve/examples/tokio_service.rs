//! A typed service in a tokio program, and a client for any task or thread of a tokio program.
//!
//! In one terminal:   cargo run --release -p dunlin-serve --example tokio_service serve udp://127.0.0.1:7801
//! In another:        cargo run --release -p dunlin-serve --example tokio_service greet udp://127.0.0.1:7801 dunlin
use std::{error::Error, time::Duration};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, OwnedRequest};
use dunlin_serve::{CallPolicy, Handle, HandleConfig, drive::drive, signals};
use serde::{Deserialize, Serialize};

const GREET: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

async fn greet(request: OwnedRequest) -> Result<Vec<u8>, serde_json::Error> {
    let Greet { name } = serde_json::from_slice(request.payload())?;
    // Everything of tokio's works in a handler: timers, sockets, channels.
    tokio::time::sleep(Duration::from_millis(1)).await;
    serde_json::to_vec(&format!("hello {name}"))
}

async fn serve(listen: Addr) -> Result<(), Box<dyn Error>> {
    let interrupt = signals::install()?;
    let endpoint = Endpoint::new(AnyTransport::bind(&listen)?, EndpointConfig::default())?;
    endpoint.register_async(GREET, greet)?;
    println!("serving greetings at {}; ctrl-C ends it", endpoint.local_addr());
    let ended = async {
        interrupt.until_set().await;
        endpoint.shutdown(Duration::from_secs(2)).await
    };
    tokio::select! {
        driven = drive(&endpoint) => match driven? {},
        _unfinished = ended => Ok(()),
    }
}

async fn call(server: Addr, name: String) -> Result<(), Box<dyn Error>> {
    let handle = Handle::start(vec![server], HandleConfig::default())?;
    let request = MsgBuf::copy_from(&serde_json::to_vec(&Greet { name })?)?;
    // Greeting twice does no harm, so the call is retried if the server is restarted.
    let response = handle.call(GREET, request, CallPolicy::repeatable()).await?;
    println!("{}", serde_json::from_slice::<String>(&response)?);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [what, listen] if what == "serve" => serve(listen.parse()?).await,
        [what, server, name] if what == "greet" => call(server.parse()?, name.clone()).await,
        _ => Err("give: serve ADDRESS, or greet ADDRESS NAME".into()),
    }
}
