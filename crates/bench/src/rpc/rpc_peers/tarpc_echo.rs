//! The echo in tarpc, with bincode over TCP.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use futures::StreamExt;
use tarpc::serde_transport::{self, Transport};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tarpc::{ClientMessage, Response, client, context};
use tokio::net::{TcpListener, TcpStream};

use super::load::Caller;
use crate::BenchError;

#[tarpc::service]
trait Echo {
    async fn echo(payload: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct EchoServer;

impl Echo for EchoServer {
    async fn echo(self, _: context::Context, payload: Vec<u8>) -> Vec<u8> {
        payload
    }
}

type Requests = ClientMessage<EchoRequest>;
type Responses = Response<EchoResponse>;

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener) -> Result<(), BenchError> {
    loop {
        let (stream, _) = listener.accept().await.map_err(BenchError::io("accept a connection"))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        let frames = Framed::new(stream, LengthDelimitedCodec::new());
        let transport: Transport<_, Requests, Responses, _> = serde_transport::new(frames, Bincode::default());
        let calls = BaseChannel::with_defaults(transport).execute(EchoServer.serve());
        tokio::task::spawn_local(calls.for_each_concurrent(None, |call| call));
    }
}

/// A connection.
#[derive(Clone)]
pub(super) struct Client(EchoClient);

impl Client {
    pub(super) async fn connect(server: SocketAddr) -> Result<Self, BenchError> {
        let stream = connected(server).await.map_err(BenchError::io(format!("connect to {server}")))?;
        let frames = Framed::new(stream, LengthDelimitedCodec::new());
        let transport: Transport<_, Responses, Requests, _> = serde_transport::new(frames, Bincode::default());
        Ok(Client(EchoClient::new(client::Config::default(), transport).spawn()))
    }
}

async fn connected(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Caller for Client {
    async fn echo(&mut self, payload: Rc<[u8]>) -> Result<(), BenchError> {
        let echoed = self.0.echo(context::current(), payload.to_vec()).await;
        let echoed = echoed.map_err(|e| BenchError::OtherSystem { system: "tarpc", why: e.to_string() })?;
        debug_assert_eq!(echoed[..], payload[..]);
        Ok(())
    }
}
