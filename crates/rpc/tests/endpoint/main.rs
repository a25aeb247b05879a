//! What an endpoint promises its users, feature by feature.
//!
//! | File | What it is about |
//! |---|---|
//! | [`calls`] | deadlines, cancellation, back-pressure, calls in either direction |
//! | [`contexts`] | what handlers know about their requests, and jobs whose callers no longer wait |
//! | [`counts`] | counts for handlers |
//! | [`durations`] | infinite durations |
//! | [`failures`] | errors of the application |
//! | [`foreign`] | endpoints in foreign event loops, and over two transports at once |
//! | [`guards`] | panics, hoarding, and using the endpoint from inside its loop |
//! | [`handlers`] | how handlers of one burst affect each other, and what an error says about what ran |
//! | [`leaving`] | nodes that fail, nodes that leave, and what they leave behind |
//! | [`leftovers`] | reused memory shows nothing of earlier messages |
//! | [`sessions`] | opening and closing, and the limits of both sides |
//! | [`many`] | twenty thousand sessions with one peer |
//! | [`panics`] | panics that are caught, and what continues after them |
//! | [`messages`] | messages up to many megabytes, over every transport |
//! | [`stalls`] | handlers and tasks that hold the event loop |
//! | [`workers`] | handlers on worker threads |
//! | [`congestion`] | congestion control, pacing and marks; [`marking`] is a network that marks |
//! | [`waiting`] | what an idle endpoint costs, and how it wakes up |

#[path = "../pair/mod.rs"]
mod pair;

mod calls;
mod congestion;
mod contexts;
mod counts;
mod durations;
mod failures;
mod foreign;
mod guards;
mod handlers;
mod leaving;
mod leftovers;
mod many;
mod marking;
mod messages;
mod panics;
mod sessions;
mod stalls;
mod waiting;
mod workers;

/// Responds with the request.
const ECHO: u8 = 1;

fn echo<T: dunlin_net::Transport>(endpoint: &dunlin_rpc::Endpoint<T>) {
    let handler = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    endpoint.register(ECHO, handler).unwrap();
}
