//! Letters between cores: a full mailbox makes its senders wait, and loses nothing.

use std::time::Duration;

use dunlin_serve::{SendError, Server};

use super::program::{Fault, Letter, block, config, program, with_each_loop};

#[test]
fn a_full_mailbox_makes_senders_wait_and_loses_nothing() {
    with_each_loop(|event_loop| {
        let mut config = config("full", 2, event_loop);
        config.letters_max = 4;
        let server = Server::start(program(Fault::None), config).unwrap();
        let mailboxes = server.mailboxes();
        let open = block(&server, 1);
        let mut sent = 0;
        let full = loop {
            match mailboxes.try_send(1, Letter::Count(1)) {
                Ok(()) => sent += 1,
                Err((why, Letter::Count(1))) => break why,
                Err(_) => panic!("another letter came back"),
            }
            assert!(sent <= 4, "it takes more than it has room for");
        };
        assert_eq!(full, SendError::Full(1));
        let each = (0..2).map(|core| (core, Letter::Count(0)));
        assert_eq!(mailboxes.send_each_within(Duration::ZERO, each), [1], "the other core has its letter");
        let any = mailboxes.send_any(1, Letter::Count(0));
        assert_eq!(futures::executor::block_on(any), Ok(0), "the next core that has room");
        // Another core waits for room; meanwhile it continues with other letters.
        mailboxes.try_send(0, Letter::Forward(1, 100)).map_err(|(why, _)| why).unwrap();
        let (who, asked) = tokio::sync::oneshot::channel();
        mailboxes.try_send(0, Letter::Who(who)).map_err(|(why, _)| why).unwrap();
        assert_eq!(asked.blocking_recv(), Ok((0, 0)));
        drop(open);
        while mailboxes.ask_all_blocking(Letter::Who)[1].1 < sent + 100 {
            std::thread::yield_now();
        }
        assert_eq!(server.stop().unwrap(), sent + 100);
    });
}

#[test]
fn a_core_that_has_ended_takes_no_letters() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::None), config("ended", 1, event_loop)).unwrap();
        let mailboxes = server.mailboxes().clone();
        server.stop().unwrap();
        assert!(matches!(mailboxes.try_send(0, Letter::Count(1)), Err((SendError::Ended(0), _))));
        assert!(mailboxes.ask_all_blocking(Letter::Who).is_empty());
    });
}
