//! The echo in gRPC, by tonic. The message and the service are written by hand, as `protoc` would generate them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::StreamExt;
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::load::Caller;
use crate::BenchError;

const METHOD: &str = "/dunlin.Echo/Echo";

/// `message Payload { bytes data = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
}

/// `service Echo { rpc Echo (Payload) returns (Payload); }`
#[derive(Clone)]
struct EchoService;

struct EchoMethod;

impl UnaryService<Payload> for EchoMethod {
    type Response = Payload;
    type Future = std::future::Ready<Result<Response<Payload>, Status>>;

    fn call(&mut self, request: Request<Payload>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_inner())))
    }
}

impl NamedService for EchoService {
    const NAME: &'static str = "dunlin.Echo";
}

impl Service<http::Request<Body>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut server = tonic::server::Grpc::new(ProstCodec::<Payload, Payload>::default());
            Ok(server.unary(EchoMethod, request).await)
        })
    }
}

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener) -> Result<(), BenchError> {
    let incoming = TcpListenerStream::new(listener);
    // The builder's option does not apply to listening sockets of our own, so each connection is set here.
    let incoming = incoming.map(|stream| stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)));
    Server::builder().add_service(EchoService).serve_with_incoming(incoming).await.map_err(failed)
}

/// A connection.
#[derive(Clone)]
pub(super) struct Client(Grpc<Channel>);

impl Client {
    pub(super) async fn connect(server: SocketAddr) -> Result<Self, BenchError> {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).map_err(failed)?;
        Ok(Client(Grpc::new(endpoint.tcp_nodelay(true).connect().await.map_err(failed)?)))
    }
}

impl Caller for Client {
    async fn echo(&mut self, payload: Rc<[u8]>) -> Result<(), BenchError> {
        let request = Request::new(Payload { data: payload.to_vec() });
        self.0.ready().await.map_err(failed)?;
        let codec = ProstCodec::<Payload, Payload>::default();
        let response = self.0.unary(request, PathAndQuery::from_static(METHOD), codec).await;
        let echoed = response.map_err(failed)?.into_inner();
        debug_assert_eq!(echoed.data[..], payload[..]);
        Ok(())
    }
}

fn failed(error: impl std::error::Error) -> BenchError {
    BenchError::OtherSystem { system: "tonic", why: format!("{error}: {:?}", error.source().map(ToString::to_string)) }
}
