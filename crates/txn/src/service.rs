//! A participant on an endpoint.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, RegisterError};

use crate::participant::Participant;
use crate::wire::Kind;

/// Answers requests of coordinators on an endpoint. Each is executed in the event loop that received it. Callers are
/// trusted: there is no authentication yet.
///
/// Call [`Endpoint::propagate_panics`], so that a participant that panicked answers nothing more.
///
/// # Errors
/// If one of the request types 0x50 to 0x5e has a handler already.
pub fn serve<T: Transport>(
    endpoint: &Endpoint<T>,
    participant: &Rc<RefCell<Participant>>,
) -> Result<(), RegisterError> {
    for kind in Kind::ALL {
        let participant = participant.clone();
        let mut answer = Vec::new();
        endpoint.register_burst(kind.req_type(), move |burst| {
            let mut participant = participant.borrow_mut();
            if burst.len() > 1 {
                (0..burst.len()).for_each(|request| participant.touch(kind, burst.payload(request)));
            }
            for request in 0..burst.len() {
                participant.handle(kind, burst.payload(request), &mut answer);
                burst.respond(request, &answer);
            }
        })?;
    }
    Ok(())
}
