//! Shutdown: requests in progress are answered, and no wait is longer than the bound.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dunlin_rpc::CallError;
use dunlin_serve::{ServeConfig, ServeError, Server};
use futures::executor::block_on;

use super::program::{ECHO, Fault, KEEP, Letter, PATIENCE, block, client, config, program, with_each_loop, work_long};

#[test]
fn calls_under_way_are_answered_and_later_ones_are_not_begun() {
    with_each_loop(|event_loop| {
        let mut config = config("under-way", 1, event_loop);
        (config.patience, config.drain_max) = (PATIENCE, PATIENCE * 2);
        let server = Server::start(program(Fault::None), config).unwrap();
        let address = server.addresses()[0].clone();
        let endpoint = client(&address);
        let (session, kept) = endpoint.block_on(async {
            let session = endpoint.connect(&address).await.unwrap();
            let kept = session.call(KEEP, vec![1]);
            // That one has arrived before this one is answered.
            session.call(ECHO, vec![2]).await.unwrap();
            (session, kept)
        });
        let stopping = std::thread::spawn(move || server.stop());
        let reply = endpoint.block_on(kept).unwrap();
        assert_eq!(&reply.response[..], b"at the end");
        let late = endpoint.block_on(session.call(ECHO, vec![3])).unwrap_err().error;
        assert!(matches!(late, CallError::ShuttingDown | CallError::Closed | CallError::PeerDied), "{late:?}");
        endpoint.run_for(Duration::from_millis(10));
        stopping.join().unwrap().unwrap();
    });
}

#[test]
fn a_core_that_does_not_finish_is_not_waited_for_beyond_the_bound() {
    with_each_loop(|event_loop| {
        let mut config = config("bound", 2, event_loop);
        config.drain_max = Duration::from_millis(50);
        let server = Server::start(program(Fault::Drain), config).unwrap();
        let begun = Instant::now();
        // It still answers pings, so it has not failed: it ends with its requests unanswered.
        server.stop().unwrap();
        assert!(begun.elapsed() < PATIENCE);
    });
}

#[test]
fn what_a_core_says_at_its_end_is_told() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::End), config("end", 2, event_loop)).unwrap();
        assert_eq!(server.stop().unwrap_err().to_string(), "the system refused to end: on purpose");
    });
}

#[test]
fn the_last_work_of_the_service_is_done_after_the_drain_while_cores_read_letters() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::None), config("finish", 2, event_loop)).unwrap();
        for core in 0..2 {
            server.mailboxes().try_send(core, Letter::Count(21)).map_err(|(why, _)| why).unwrap();
        }
        assert_eq!(server.stop().unwrap(), 42);
    });
}

#[test]
fn letters_that_wait_do_not_delay_the_end() {
    with_each_loop(|event_loop| {
        let mut config = config("waiters", 2, event_loop);
        (config.drain_max, config.answer_max, config.letters_max) = (PATIENCE, PATIENCE, 1);
        let server = Server::start(program(Fault::None), config).unwrap();
        // At any time, some sender waits for room at each core.
        let senders: Vec<_> = (0..6)
            .map(|sender| {
                let mailboxes = server.mailboxes().clone();
                let send = move || while block_on(mailboxes.send(sender % 2, Letter::Count(1))).is_ok() {};
                std::thread::spawn(send)
            })
            .collect();
        let begun = Instant::now();
        server.stop().unwrap();
        assert!(begun.elapsed() < PATIENCE);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_time_without_end_is_no_failure() {
    with_each_loop(|event_loop| {
        let set: [fn(&mut ServeConfig); 3] = [
            |config| config.patience = Duration::MAX,
            |config| config.drain_max = Duration::MAX,
            |config| config.answer_max = Duration::MAX,
        ];
        for set in set {
            let mut config = config("endless", 2, event_loop);
            set(&mut config);
            Server::start(program(Fault::None), config.clone()).unwrap().stop().unwrap();
            drop(Server::start(program(Fault::None), config).unwrap());
        }
    });
}

#[test]
fn an_interrupt_ends_a_server_that_runs() {
    with_each_loop(|event_loop| {
        let config = config("interrupt", 1, event_loop);
        let interrupt = config.interrupt.clone();
        let server = Server::start(program(Fault::None), config).unwrap();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(server.run()));
        interrupt.set();
        assert_eq!(end.recv_timeout(PATIENCE).unwrap().unwrap(), 0);
    });
}

#[test]
fn a_core_that_hangs_does_not_keep_the_server_from_ending() {
    with_each_loop(|event_loop| {
        let mut config = config("hang", 2, event_loop);
        (config.drain_max, config.answer_max) = (Duration::from_millis(10), Duration::from_secs(2));
        let program = program(Fault::None);
        let server = Server::start(program.clone(), config).unwrap();
        let open = block(&server, 1);
        let error = server.stop().unwrap_err();
        drop(open);
        assert!(matches!(&error, ServeError::CoreFailed { core: 1, .. }), "{error}");
        assert!(error.to_string().ends_with("it has not answered for 2s; nothing was saved"), "{error}");
        assert_eq!(*program.0.given_up.lock().unwrap(), [1]);
    });
}

#[test]
fn a_core_that_hangs_when_it_ends_is_a_failure() {
    with_each_loop(|event_loop| {
        let mut config = config("hang-end", 2, event_loop);
        config.answer_max = Duration::from_secs(2);
        let program = program(Fault::EndHangs);
        let server = Server::start(program.clone(), config).unwrap();
        let error = server.stop().expect_err("its core 0 has not ended");
        assert!(matches!(&error, ServeError::CoreFailed { core: 0, .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "core 0 has failed: it did not end within 2s; the last work of the service was done before"
        );
        assert_eq!(program.0.ended.load(Ordering::Relaxed), 1, "the other one has ended in order");
        program.0.let_go.store(true, Ordering::Relaxed);
    });
}

#[test]
fn last_work_that_failed_is_told_even_if_a_core_then_hangs() {
    with_each_loop(|event_loop| {
        let mut config = config("hang-unsaved", 2, event_loop);
        config.answer_max = Duration::from_secs(2);
        let program = program(Fault::FinishFailsAndEndHangs);
        let server = Server::start(program.clone(), config).unwrap();
        let error = server.stop().expect_err("its last work has failed, and its core 0 has not ended");
        assert_eq!(
            error.to_string(),
            "core 0 has failed: it did not end within 2s; \
             the last work of the service failed before: the system refused the last work: on purpose"
        );
        program.0.let_go.store(true, Ordering::Relaxed);
    });
}

/// A service manager that stops a server waits for it, and not for as long as that work may take.
#[test]
fn work_that_takes_long_does_not_keep_the_server_from_ending() {
    with_each_loop(|event_loop| {
        let mut config = config("long-end", 2, event_loop);
        (config.drain_max, config.answer_max) = (Duration::from_millis(50), Duration::from_secs(2));
        config.long_work_max = PATIENCE;
        let program = program(Fault::None);
        let server = Server::start(program.clone(), config).unwrap();
        let open = work_long(&server, 1);
        let error = server.stop().unwrap_err();
        drop(open);
        assert_eq!(error.to_string(), "core 1 has failed: it has not answered for 2s; nothing was saved");
        assert_eq!(*program.0.given_up.lock().unwrap(), [1]);
    });
}
