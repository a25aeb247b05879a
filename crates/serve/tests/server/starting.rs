//! Starting a server returns when it serves, or says which core does not.

use std::sync::atomic::Ordering;

use dunlin_serve::{ServeError, Server};

use super::program::{ECHO, Fault, client, config, program, with_each_loop};

#[test]
fn every_core_serves_when_the_start_returns() {
    with_each_loop(|event_loop| {
        let server = Server::start(program(Fault::None), config("start", 3, event_loop)).unwrap();
        assert_eq!((server.cores(), **server.plan()), (3, 3));
        for addresses in server.addresses_of_cores() {
            let endpoint = client(&addresses[0]);
            let reply = endpoint.block_on(async {
                endpoint.connect(&addresses[0]).await.unwrap().call(ECHO, vec![1, 2]).await.unwrap()
            });
            assert_eq!(reply.response[..], [1, 2]);
        }
        assert!(server.is_running());
        server.stop().unwrap();
    });
}

#[test]
fn a_core_that_does_not_start_is_named_and_the_others_end() {
    with_each_loop(|event_loop| {
        for (fault, why) in [
            (Fault::Build, "core 1 cannot start: the system refused to build: on purpose"),
            (Fault::BuildPanics, "core 1 cannot start: core 1 has failed: it panicked: a fault on purpose"),
            (Fault::Begin, "core 1 cannot start: the system refused to begin: on purpose"),
        ] {
            let (program, config) = (program(fault), config("refused", 3, event_loop));
            let Err(error) = Server::start(program.clone(), config.clone()) else { panic!("{fault:?}: it started") };
            assert_eq!((error.core, error.to_string()), (Some(1), why.to_owned()));
            // Their addresses are free again.
            Server::start(super::program::program(Fault::None), config).unwrap().stop().unwrap();
            let (built, ended) = (program.0.built.load(Ordering::Relaxed), program.0.ended.load(Ordering::Relaxed));
            assert!(ended <= built, "{ended} of {built}");
        }
    });
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_is_made() {
    with_each_loop(|event_loop| {
        let refused = |change: &dyn Fn(&mut dunlin_serve::ServeConfig)| {
            let mut config = config("settings", 2, event_loop);
            change(&mut config);
            let program = program(Fault::None);
            let error = Server::start(program.clone(), config).err().unwrap().error;
            assert_eq!(program.0.built.load(Ordering::Relaxed), 0);
            error
        };
        assert!(matches!(refused(&|config| config.cores = 0), ServeError::Cores { cores: 0 }));
        assert!(matches!(refused(&|config| config.pin = vec![0]), ServeError::Pins { cores: 2, processors: 1 }));
        assert!(matches!(refused(&|config| config.pin = vec![5000; 2]), ServeError::Pin { processor: 5000, .. }));
        assert!(matches!(refused(&|config| config.listen.clear()), ServeError::NoAddress));
        let two = |config: &mut dunlin_serve::ServeConfig| {
            config.listen = ["shm:a", "shm:b"].map(|a| a.parse().unwrap()).into()
        };
        assert!(matches!(refused(&two), ServeError::AddressKinds { .. }));
    });
}

#[test]
fn a_server_listens_at_several_addresses() {
    with_each_loop(|event_loop| {
        let mut config = config("both", 2, event_loop);
        config.listen.push("udp://127.0.0.1:0".parse().unwrap());
        let server = Server::start(program(Fault::None), config).unwrap();
        for address in server.addresses_of_cores().iter().flatten() {
            let endpoint = client(address);
            endpoint.block_on(async {
                endpoint.connect(address).await.unwrap().call(ECHO, vec![1]).await.unwrap();
            });
        }
        assert_eq!(server.addresses().len(), 2);
    });
}
