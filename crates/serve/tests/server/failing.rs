//! A core that fails ends the server with its reason, after what can be saved was saved.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dunlin_rpc::CallOptions;
use dunlin_serve::{EventLoop, ServeError, Server};

use super::program::{
    Fault, Letter, PANIC, PATIENCE, Shareable, block, client, config, program, with_each_loop, work_long,
};

fn wait_for_the_end(server: &Server<Shareable>) {
    let begun = Instant::now();
    while server.is_running() {
        assert!(begun.elapsed() < PATIENCE, "the server goes on as if nothing had happened");
        std::thread::yield_now();
    }
}

/// The error of a server whose core 1 has failed, and what its cores were asked after that.
fn told(name: &str, event_loop: EventLoop, fail: impl FnOnce(&Server<Shareable>)) -> (String, Vec<(u16, u64)>) {
    let program = program(Fault::None);
    let server = Server::start(program.clone(), config(name, 2, event_loop)).unwrap();
    server.mailboxes().try_send(1, Letter::Count(7)).map_err(|(why, _)| why).unwrap();
    fail(&server);
    wait_for_the_end(&server);
    let error = server.stop().unwrap_err();
    assert!(matches!(error, ServeError::CoreFailed { core: 1, .. }));
    let rescued = program.0.rescued.lock().unwrap().clone();
    (error.to_string(), rescued)
}

const TOLD: &str = "core 1 has failed: it panicked: a fault on purpose; 2 cores answered after core 1 failed";

#[test]
fn a_core_that_panics_with_a_letter_ends_the_server_after_its_rescue() {
    with_each_loop(|event_loop| {
        let (told, rescued) = told("panic-letter", event_loop, |server| {
            server.mailboxes().try_send(1, Letter::Panic).map_err(|(why, _)| why).unwrap();
        });
        assert_eq!((told.as_str(), &rescued[..]), (TOLD, &[(0, 0), (1, 7)][..]));
    });
}

#[test]
fn a_core_that_panics_in_a_handler_ends_the_server_after_its_rescue() {
    with_each_loop(|event_loop| {
        let (told, rescued) = told("panic-handler", event_loop, |server| {
            let address = server.addresses_of_cores()[1][0].clone();
            let endpoint = client(&address);
            let call = endpoint.block_on(async {
                let session = endpoint.connect(&address).await.unwrap();
                session.call_with(PANIC, vec![1], CallOptions::timeout(Duration::from_millis(1))).await
            });
            assert!(call.is_err());
        });
        assert_eq!((told.as_str(), &rescued[..]), (TOLD, &[(0, 0), (1, 7)][..]));
    });
}

#[test]
fn a_core_that_panics_when_it_drains_is_a_failure_too() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::DrainPanics), config("panic-drain", 2, event_loop)).unwrap();
        assert_eq!(server.stop().unwrap_err().to_string(), TOLD);
    });
}

#[test]
fn a_failure_ends_a_server_that_runs() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::None), config("panic-run", 2, event_loop)).unwrap();
        server.mailboxes().try_send(1, Letter::Panic).map_err(|(why, _)| why).unwrap();
        assert_eq!(server.run().unwrap_err().to_string(), TOLD);
    });
}

#[test]
fn a_core_that_hangs_ends_a_server_that_runs() {
    with_each_loop(|event_loop| {
        let mut config = config("hang-run", 2, event_loop);
        (config.drain_max, config.answer_max) = (Duration::from_millis(10), Duration::from_secs(2));
        let program = program(Fault::None);
        let server = Server::start(program.clone(), config).unwrap();
        let open = block(&server, 1);
        let error = server.run().unwrap_err();
        drop(open);
        assert!(error.to_string().contains("core 1 has failed: it has not answered for 2s"), "{error}");
        assert_eq!(*program.0.given_up.lock().unwrap(), [1]);
    });
}

#[test]
fn a_core_whose_announced_work_takes_too_long_is_not_said_to_be_silent() {
    with_each_loop(|event_loop| {
        let mut config = config("long-run", 2, event_loop);
        (config.drain_max, config.answer_max) = (Duration::from_millis(10), Duration::from_secs(2));
        config.long_work_max = Duration::from_secs(3);
        let server = Server::start(program(Fault::None), config).unwrap();
        let open = work_long(&server, 1);
        let error = server.run().unwrap_err();
        drop(open);
        let told = "core 1 has failed: what it announced as long work has taken more than 3s";
        assert!(error.to_string().starts_with(told), "{error}");
    });
}

#[test]
fn a_core_that_hangs_takes_no_other_with_it_though_its_mailbox_is_full() {
    with_each_loop(|event_loop| {
        let mut config = config("hang-full", 3, event_loop);
        (config.drain_max, config.answer_max) = (Duration::from_millis(10), Duration::from_secs(2));
        config.letters_max = 1;
        let program = program(Fault::None);
        let server = Server::start(program.clone(), config).unwrap();
        let open = block(&server, 0);
        while server.mailboxes().try_send(0, Letter::Count(1)).is_ok() {}
        let error = server.stop().unwrap_err();
        drop(open);
        assert!(matches!(&error, ServeError::CoreFailed { core: 0, .. }), "{error}");
        assert_eq!(*program.0.given_up.lock().unwrap(), [0]);
        assert!(program.0.ended.load(Ordering::Relaxed) >= 2, "the others have ended in order");
    });
}

#[test]
fn the_address_of_a_core_that_failed_is_free_again() {
    with_each_loop(|event_loop| {
        let mut config = config("free", 1, event_loop);
        config.listen = vec!["udp://127.0.0.1:0".parse().unwrap()];
        for letter in [Letter::Panic, Letter::Fail] {
            let server = Server::start(program(Fault::None), config.clone()).unwrap();
            config.listen = server.addresses().to_vec();
            server.mailboxes().try_send(0, letter).map_err(|(why, _)| why).unwrap();
            wait_for_the_end(&server);
            server.stop().unwrap_err();
        }
        Server::start(program(Fault::None), config).unwrap().stop().unwrap();
    });
}

#[test]
fn a_core_that_says_that_it_has_failed_ends_as_others_do() {
    with_each_loop(|event_loop| {
        let program = program(Fault::None);
        let server = Server::start(program.clone(), config("says", 2, event_loop)).unwrap();
        server.mailboxes().try_send(1, Letter::Fail).map_err(|(why, _)| why).unwrap();
        let told = server.run().unwrap_err().to_string();
        assert_eq!(told, "core 1 has failed: it was told to; 2 cores answered after core 1 failed");
        assert_eq!(program.0.ended.load(Ordering::Relaxed), 2, "no thread is left behind");
    });
}
