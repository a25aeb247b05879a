//! Packets that manage sessions, on their way from the transport to the protocol.

use std::rc::Rc;

use dunlin_net::Transport;

use super::Shared;
use crate::core::receive::Other;
use crate::observe::DropReason;
use crate::wire::control::{Body, Credits, Presence, Release};
use crate::wire::{HEADER_BYTES, Header, Kind};

/// Bytes of a RESET packet.
const RESET_BYTES: usize = HEADER_BYTES + Presence::BYTES;
/// Longest body of a control packet.
const CONTROL_BODY_MAX: usize = 64;

/// Handles a session-management packet.
#[cold]
pub(crate) fn control<T: Transport>(shared: &Rc<Shared>, transport: &mut T, i: usize, received: &Other) {
    let mut bytes = [0; CONTROL_BODY_MAX];
    let packet = transport.rx_packet(i);
    let from = packet.route();
    let mut core = shared.core.borrow_mut();
    let header = match received {
        Other::Control(header) => header,
        Other::Unknown(header) => {
            use Kind::{Close, Credits, Ping, Request, RequestForResponse};
            let answered = matches!(header.kind, Request | RequestForResponse | Ping | Close | Credits);
            // The address may be forged: send nothing longer there than what came from it. A peer with short packets
            // asks by PING.
            let answered = answered && packet.len() >= RESET_BYTES && !core.knows_tag(header);
            if let (true, Some(source)) = (answered, transport.rx_source(i)) {
                core.send_reset(source, header);
            }
            return;
        }
    };
    let mut len = packet.len().saturating_sub(header.wire_len());
    if header.kind == Kind::Ping && len > Presence::BYTES {
        // A probe of the path: the rest is only padding.
        len = Presence::BYTES;
    }
    if len > CONTROL_BODY_MAX {
        core.counters.dropped_control += 1;
        return;
    }
    packet.copy_to(header.wire_len(), &mut bytes[..len]);
    let body = &bytes[..len];
    match header.kind {
        Kind::Connect => {
            let source = transport.rx_source(i);
            core.on_connect(transport, source, body);
        }
        Kind::Cookie => core.on_cookie(header, from, body),
        Kind::Accept => core.on_accept(header, from, transport.rx_source(i), body),
        Kind::Refuse => core.on_refuse(header, from, body),
        Kind::Reset => match Presence::parse(body) {
            Ok(reset) => core.on_reset(from, &reset),
            Err(_) => core.counters.dropped_control += 1,
        },
        // An earlier packet of the burst may have ended its session, and another session may have begun at the same
        // index.
        _ if core.is_session_of(header, from) => session_control(&mut core, header, body),
        _ => core.counters.dropped_unknown_session += 1,
    }
}

/// Handles a control packet that named its session correctly.
fn session_control(core: &mut crate::core::Core, header: &Header, body: &[u8]) {
    let session = header.session;
    if header.kind == Kind::Credits {
        return match Credits::parse(body) {
            Ok(credits) => core.on_credits(session, &credits),
            Err(_) => core.drop_on(session, DropReason::Control),
        };
    }
    match (header.kind, Presence::parse(body), Release::parse(body)) {
        (Kind::Ping | Kind::Pong, Ok(presence), _) => core.on_presence(session, header.kind, &presence),
        (Kind::Close, Ok(_), _) => core.on_close(session),
        (Kind::CloseAck, Ok(_), _) => core.on_close_ack(session),
        (Kind::Release, _, Ok(release)) => core.on_release(session, &release),
        _ => core.drop_on(session, DropReason::Control),
    }
}
