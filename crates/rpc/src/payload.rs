//! What a request or a response can be sent from: a message buffer, or the application's own memory without a copy.

use std::any::Any;
use std::error::Error;
use std::fmt::Display;

use bytes::Bytes;

use crate::error::ApplicationError;
use crate::msgbuf::MsgBuf;

/// The bytes of one message to send, owned while they may be retransmitted: made from a [`MsgBuf`], an application's
/// `Vec<u8>`, or [`Bytes`], whose clones may be sent to many sessions at the same time. [`RequestBuffer::from_payload`]
/// returns the original buffer.
///
/// ```
/// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
/// # use dunlin_rpc::{Endpoint, EndpointConfig};
/// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
/// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
/// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
/// use bytes::Bytes;
///
/// server.register(7, |request| request.respond(b"stored"))?;
/// let work = async {
///     let sessions = [client.connect(&Addr::Node(1)).await?, client.connect(&Addr::Node(1)).await?];
///     // One buffer on its way to several servers.
///     let page = Bytes::from(vec![7; 100_000]);
///     let calls: Vec<_> = sessions.iter().map(|session| session.call(7, page.clone())).collect();
///     for call in calls {
///         assert_eq!(&call.await?.response[..], b"stored");
///     }
/// #     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// # // One thread drives both endpoints.
/// # let mut work = Box::pin(work);
/// # loop {
/// #     server.run_once();
/// #     if let Some(done) = client.poll_once(work.as_mut()) {
/// #         break done?;
/// #     }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Payload(Kind);

/// Two words in every case: a payload moves often, and then in registers.
#[derive(Debug)]
enum Kind {
    MsgBuf(MsgBuf),
    Foreign(Box<Foreign>),
}

/// The application's memory.
#[derive(Debug)]
enum Foreign {
    Vec(Vec<u8>),
    Bytes(Bytes),
}

impl Payload {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kind::MsgBuf(buf) => buf,
            Kind::Foreign(foreign) => foreign.as_slice(),
        }
    }

    /// The message buffer, if it is one.
    #[inline]
    pub(crate) fn as_msgbuf(&self) -> Option<&MsgBuf> {
        if let Kind::MsgBuf(buf) = &self.0 { Some(buf) } else { None }
    }

    /// Whether dropping it may run the application's code.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.0, Kind::Foreign(_))
    }

    /// As [`Payload::as_msgbuf`].
    #[inline]
    pub(crate) fn as_msgbuf_mut(&mut self) -> Option<&mut MsgBuf> {
        if let Kind::MsgBuf(buf) = &mut self.0 { Some(buf) } else { None }
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Bytes of memory that it keeps allocated: for a message buffer and a vector their capacity. For [`Bytes`] their
    /// length, since they do not reveal the memory they are a slice of.
    #[inline]
    pub(crate) fn kept_bytes(&self) -> usize {
        match &self.0 {
            Kind::MsgBuf(buf) => buf.capacity(),
            Kind::Foreign(foreign) => foreign.kept_bytes(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Foreign {
    fn as_slice(&self) -> &[u8] {
        match self {
            Foreign::Vec(vec) => vec,
            Foreign::Bytes(bytes) => bytes,
        }
    }

    fn kept_bytes(&self) -> usize {
        match self {
            Foreign::Vec(vec) => vec.capacity(),
            Foreign::Bytes(bytes) => bytes.len(),
        }
    }
}

impl From<MsgBuf> for Payload {
    #[inline]
    fn from(buf: MsgBuf) -> Self {
        Payload(Kind::MsgBuf(buf))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(vec: Vec<u8>) -> Self {
        Payload(Kind::Foreign(Box::new(Foreign::Vec(vec))))
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload(Kind::Foreign(Box::new(Foreign::Bytes(bytes))))
    }
}

/// What an asynchronous or a worker-mode handler returns: a response, or an error. Implement it for types of your own.
///
/// An [`ApplicationError`] reaches the caller, also one in a `Box<dyn Error>` among other errors. For any other error
/// the caller only gets [`CallError::HandlerFailed`](crate::CallError::HandlerFailed), and its text goes to `tracing`
/// at level debug.
pub trait IntoResponse {
    /// Returns the response, or the error.
    ///
    /// # Errors
    /// If the handler failed.
    fn into_response(self) -> Result<Payload, HandlerError>;
}

/// Why a handler has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// An error that the caller gets.
    #[error(transparent)]
    Application(#[from] ApplicationError),
    /// Any other error, as text for the log.
    #[error("{0}")]
    Failed(String),
}

impl HandlerError {
    /// Converts an error of any type: an [`ApplicationError`], even boxed, stays one; of any other only the text is
    /// kept.
    fn of(error: impl Display + 'static) -> HandlerError {
        let any: &dyn Any = &error;
        let plain = any.downcast_ref::<Box<dyn Error>>().and_then(|error| error.downcast_ref());
        let shared = any.downcast_ref::<Box<dyn Error + Send + Sync>>().and_then(|error| error.downcast_ref());
        match any.downcast_ref::<ApplicationError>().or(plain).or(shared) {
            Some(error) => HandlerError::Application(error.clone()),
            None => HandlerError::Failed(error.to_string()),
        }
    }
}

impl IntoResponse for Payload {
    fn into_response(self) -> Result<Payload, HandlerError> {
        Ok(self)
    }
}

impl IntoResponse for MsgBuf {
    fn into_response(self) -> Result<Payload, HandlerError> {
        Ok(self.into())
    }
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Result<Payload, HandlerError> {
        Ok(self.into())
    }
}

impl IntoResponse for Bytes {
    fn into_response(self) -> Result<Payload, HandlerError> {
        Ok(self.into())
    }
}

impl<R: IntoResponse, E: Display + 'static> IntoResponse for Result<R, E> {
    fn into_response(self) -> Result<Payload, HandlerError> {
        self.map_err(HandlerError::of)?.into_response()
    }
}

/// A kind of buffer that a call can take and return: [`MsgBuf`], `Vec<u8>`, [`Bytes`], or [`Payload`] itself.
pub trait RequestBuffer: Into<Payload> {
    /// The original buffer of a payload; `None` if the payload is of another kind.
    fn from_payload(payload: Payload) -> Option<Self>;
}

impl RequestBuffer for MsgBuf {
    #[inline]
    fn from_payload(payload: Payload) -> Option<Self> {
        if let Kind::MsgBuf(buf) = payload.0 { Some(buf) } else { None }
    }
}

impl RequestBuffer for Vec<u8> {
    fn from_payload(payload: Payload) -> Option<Self> {
        match payload.0 {
            Kind::Foreign(foreign) => {
                if let Foreign::Vec(vec) = *foreign {
                    Some(vec)
                } else {
                    None
                }
            }
            Kind::MsgBuf(_) => None,
        }
    }
}

impl RequestBuffer for Bytes {
    fn from_payload(payload: Payload) -> Option<Self> {
        match payload.0 {
            Kind::Foreign(foreign) => {
                if let Foreign::Bytes(bytes) = *foreign {
                    Some(bytes)
                } else {
                    None
                }
            }
            Kind::MsgBuf(_) => None,
        }
    }
}

impl RequestBuffer for Payload {
    fn from_payload(payload: Payload) -> Option<Self> {
        Some(payload)
    }
}
