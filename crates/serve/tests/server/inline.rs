//! The same service without a thread, on a clock that the test moves.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::{Inline, ServeError};

use super::program::{ECHO, Fault, KEEP, Letter, Shareable, program};

struct World {
    network: LoopbackNetwork,
    server: Rc<Endpoint<LoopbackTransport>>,
    client: Endpoint<LoopbackTransport>,
}

impl World {
    fn new() -> World {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = |node| Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap();
        World { server: Rc::new(endpoint(1)), client: endpoint(2), network: network.clone() }
    }

    fn serve(&self, fault: Fault) -> (Inline<LoopbackTransport, Shareable>, std::sync::Arc<Shareable>) {
        let program = program(fault);
        (Inline::start(program.clone(), &self.server, Duration::from_secs(1)).unwrap(), program)
    }

    fn drive<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        loop {
            self.network.advance(Duration::from_micros(10));
            self.server.run_once();
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
        }
    }
}

#[test]
fn a_core_serves_reads_letters_and_ends_gracefully_on_virtual_time() {
    let world = World::new();
    let (server, program) = world.serve(Fault::None);
    let session = world.drive(world.client.connect(&Addr::Node(1))).unwrap();
    assert_eq!(world.drive(session.call(ECHO, vec![5])).unwrap().response[..], [5]);
    let answers = world.drive(async {
        server.mailboxes().send(0, Letter::Count(3)).await.unwrap();
        server.mailboxes().ask_all(Letter::Who).await
    });
    assert_eq!(answers, [(0, 3)]);
    let kept = session.call(KEEP, vec![1]);
    world.drive(session.call(ECHO, vec![2])).unwrap();
    let held = Rc::strong_count(&world.server);
    let (stopped, kept) = world.drive(async { futures::join!(server.stop(), kept) });
    assert_eq!(&kept.unwrap().response[..], b"at the end");
    assert_eq!(stopped.unwrap(), 3);
    assert_eq!(program.0.ended.load(Ordering::Relaxed), 1);
    assert!(held > 1 && Rc::strong_count(&world.server) == 1, "nothing holds the endpoint any more");
}

#[test]
fn what_cannot_start_says_so_and_what_does_not_end_in_order_too() {
    let world = World::new();
    let (server, _) = world.serve(Fault::End);
    let error = world.drive(server.stop()).unwrap_err();
    assert!(matches!(error, ServeError::System { what: "to end", .. }), "{error}");
    // The handlers are still registered.
    let again = Inline::start(program(Fault::None), &world.server, Duration::ZERO);
    assert!(matches!(again, Err(ServeError::Register(_))));
}

#[test]
fn a_core_that_is_dropped_ends() {
    let world = World::new();
    let (server, program) = world.serve(Fault::None);
    drop(server);
    world.server.run_once();
    world.server.run_once();
    assert_eq!((program.0.ended.load(Ordering::Relaxed), Rc::strong_count(&world.server)), (1, 1));
}
