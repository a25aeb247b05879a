//! Two threads, each both client and server of the other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, MsgBuf};
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::rate::open_sessions;
use super::setup::{OnTransport, Setup, Side};
use super::{ECHO, MEET, PART};
use crate::BenchError;

/// One of two threads that send each other echoes, like each thread of eRPC's Figure 4: it issues requests, and serves
/// as many. Each serves until the other's load has ended; the first one until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Symmetric {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The address of the first thread, for the second.
    pub peer: Option<String>,
    /// Sessions to open.
    pub sessions: usize,
    /// The load on them.
    pub load: Load,
}

impl Role for Symmetric {
    const NAME: &'static str = "client and server";
    /// Its address.
    type Ready = String;
    /// Rate of the calls that it issued.
    type Output = f64;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<f64, BenchError> {
        self.setup.on_transport(Side::Server, Both { thread: &self, control })
    }
}

struct Both<'a> {
    thread: &'a Symmetric,
    control: &'a Control<Symmetric>,
}

impl OnTransport for Both<'_> {
    type Output = f64;

    fn run<T: Transport>(self, transport: T) -> Result<f64, BenchError> {
        let Both { thread, control } = self;
        let endpoint = Endpoint::new(transport, thread.setup.endpoint())?;
        let met: Rc<RefCell<Option<String>>> = Rc::default();
        endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        let meeting = Rc::clone(&met);
        endpoint.register(MEET, move |request| {
            *meeting.borrow_mut() = Some(String::from_utf8_lossy(request.payload()).into_owned());
            request.respond(&[]);
        })?;
        let is_other_done = Rc::new(Cell::new(false));
        let parting = Rc::clone(&is_other_done);
        endpoint.register(PART, move |request| {
            parting.set(true);
            request.respond(&[]);
        })?;
        let own = endpoint.local_addr().to_string();
        control.ready(own.clone());
        let peer: Addr = match &thread.peer {
            Some(first) => {
                let first: Addr = first.parse()?;
                let session = endpoint.block_on(endpoint.connect(&first))?;
                let call = session.call(MEET, MsgBuf::copy_from(own.as_bytes())?);
                endpoint.block_on(call).map_err(|failure| failure.error)?;
                first
            }
            None => {
                endpoint.run_until(|| met.borrow().is_some() || control.stopping());
                let Some(second) = met.take() else { return Err(BenchError::no_samples("the other thread")) };
                second.parse()?
            }
        };
        let sessions = open_sessions(&endpoint, &peer, thread.sessions)?;
        let last = endpoint.block_on(endpoint.connect(&peer))?;
        let rate = thread.load.run(&endpoint, sessions, |rate| {
            control.live(Metric::Rate, rate);
            !control.stopping()
        })?;
        // It serves while the other still sends requests. The other may be gone before its answer to this arrives.
        let _ = endpoint.block_on(last.call(PART, MsgBuf::copy_from(&[])?));
        endpoint.run_until(|| is_other_done.get() || control.stopping());
        if thread.peer.is_none() {
            endpoint.run_until(|| control.stopping());
        }
        Ok(rate)
    }
}
