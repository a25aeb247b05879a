//! A core that panics ends the whole server soon, with its reason, and what can be saved is saved.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dunlin_kv::KvClient;
use dunlin_kv::client::ClientConfig;
use dunlin_kv::memcached::Listen;
use dunlin_kv::server::{Server, ServerConfig, ServerError};
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::{Mode, Partition, Shape};

use super::client::{Client, PATIENCE, config, wait_for_the_end};
use super::fragile::{Fragile, Gate};

const ITEMS: u32 = 200;

/// Starts a server of two cores that saves to a file, and whose cores panic on request.
fn fragile(name: &str, unreadable: bool) -> (Server<Fragile>, ServerConfig, PathBuf) {
    let (server, config, file, _) = gated(unreadable, config(name, 2));
    (server, config, file)
}

/// The same with other settings, and with its gate.
fn gated(unreadable: bool, mut config: ServerConfig) -> (Server<Fragile>, ServerConfig, PathBuf, Arc<Gate>) {
    let Listen::Unix(socket) = &config.memcached[0] else { panic!("no Unix socket") };
    let file = socket.with_extension("snapshot");
    config.mode = Mode::Store;
    config.snapshot = Some(file.clone());
    let gate = Arc::new(Gate::default());
    let of_cores = gate.clone();
    let unreadable = Arc::new(AtomicBool::new(unreadable));
    let make = move |config, _: Option<&Shape>| {
        let partition = Partition::new(config)?;
        let (unreadable, gate, ticks) = (unreadable.clone(), of_cores.clone(), Arc::default());
        Ok(Fragile { partition, is_broken: false, unreadable, ticks, has_no_stats: false, hangs: false, gate })
    };
    let server = Server::start_with(config.clone(), make, |_| {}).unwrap();
    (server, config, file, gate)
}

/// Returns how many of the items a server has that starts with this snapshot.
fn loaded(config: &ServerConfig, snapshot: &Path) -> u32 {
    let mut config = config.clone();
    config.snapshot = Some(snapshot.to_owned());
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let found = Client::connect(&config).count("key", ITEMS);
    server.stop().unwrap();
    found
}

fn remove(file: &Path) {
    for extension in ["snapshot", "snapshot.before", "snapshot.rescue.new", "snapshot.rescue.part"] {
        let _ = std::fs::remove_file(file.with_extension(extension));
    }
    rescues(file).iter().for_each(|rescue| drop(std::fs::remove_file(rescue)));
}

/// Returns the names of rescues.
fn rescues(file: &Path) -> Vec<PathBuf> {
    let numbered = (1..8).map(|number| file.with_extension(format!("snapshot.rescue.{number}")));
    std::iter::once(file.with_extension("snapshot.rescue")).chain(numbered).collect()
}

/// Returns the reason, with all causes.
fn told(error: &ServerError) -> String {
    let mut told = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        told += &format!(": {cause}");
        source = cause.source();
    }
    told
}

#[test]
fn a_core_that_panics_for_a_memcached_client_ends_the_server_and_saves_all() {
    // Whichever core has the connection, and whichever owns the key.
    for (at, key) in ["panic1", "panic2", "panic3", "panic4"].into_iter().enumerate() {
        let (server, config, file) = fragile(&format!("mc-panic{at}"), false);
        Client::connect(&config).fill("key", ITEMS);
        let mut idle = Client::connect(&config);
        idle.ask(b"mn\r\n", b"MN\r\n");
        let mut client = Client::connect(&config);
        client.say(format!("set {key} 0 0 1\r\nx\r\n").as_bytes());
        wait_for_the_end(&server);
        let error = server.stop().unwrap_err();
        let told = told(&error);
        assert!(told.contains("a fault on purpose") && told.contains("panicked"), "{told}");
        assert!(told.contains(&format!("all {ITEMS} items")), "{told}");
        // Both connections are closed; nothing waits for an answer that will never come.
        client.rest();
        idle.rest();
        assert_eq!(loaded(&config, &file), ITEMS);
        remove(&file);
    }
}

#[test]
fn a_core_that_panics_for_a_native_client_ends_the_server_and_saves_all() {
    let (server, config, file) = fragile("native-panic", false);
    Client::connect(&config).fill("key", ITEMS);
    let address = server.addresses()[0].clone();
    let endpoint = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
    let endpoint = Rc::new(endpoint);
    let client = KvClient::new(&endpoint, &address, ClientConfig::default());
    let client = client.with_deadline(Some(Duration::from_secs(1)));
    // Unanswered, or told that the server is going away.
    assert!(endpoint.block_on(client.set(b"panic", b"x")).is_err());
    wait_for_the_end(&server);
    let told = told(&server.stop().unwrap_err());
    assert!(told.contains("a fault on purpose") && told.contains(&format!("all {ITEMS} items")), "{told}");
    assert_eq!(loaded(&config, &file), ITEMS);
    remove(&file);
}

#[test]
fn items_that_cannot_be_read_after_a_panic_leave_the_snapshot_of_before_and_the_rest_is_rescued() {
    let (server, config, file) = fragile("unreadable", true);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS / 2);
    server.save().unwrap();
    client.fill("key", ITEMS);
    client.say(b"set panic 0 0 1\r\nx\r\n");
    wait_for_the_end(&server);
    let told = told(&server.stop().unwrap_err());
    let rescue = file.with_extension("snapshot.rescue");
    assert!(told.contains("a fault on purpose") && told.contains(rescue.to_str().unwrap()), "{told}");
    assert_eq!(loaded(&config, &file), ITEMS / 2, "the one before");
    let rescued = loaded(&config, &rescue);
    assert!((ITEMS / 4..ITEMS).contains(&rescued), "{rescued} items of the core that is whole");
    remove(&file);
}

#[test]
fn a_core_that_panics_when_it_is_asked_for_its_counts_loses_nothing() {
    let (server, config, file) = fragile("stats-panic", false);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS);
    client.ask(b"set stats 0 0 1\r\nx\r\n", b"STORED\r\n");
    client.say(b"stats\r\n");
    wait_for_the_end(&server);
    let error = server.stop().unwrap_err();
    assert!(matches!(error, ServerError::CoreFailed { .. }), "{error:?}");
    let told = told(&error);
    assert!(told.contains("a fault on purpose") && told.contains(&format!("all {} items", ITEMS + 1)), "{told}");
    assert_eq!(loaded(&config, &file), ITEMS);
    remove(&file);
}

#[test]
fn what_an_earlier_rescue_set_aside_is_never_replaced() {
    let (server, config, file) = fragile("loop", false);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS / 2);
    server.save().unwrap();
    let before = file.with_extension("snapshot.before");
    std::fs::write(&before, b"the last good snapshot").unwrap();
    client.fill("key", ITEMS);
    client.say(b"set panic 0 0 1\r\nx\r\n");
    wait_for_the_end(&server);
    let told = told(&server.stop().unwrap_err());
    assert_eq!(std::fs::read(&before).unwrap(), b"the last good snapshot");
    let rescue = file.with_extension("snapshot.rescue");
    assert!(told.contains(rescue.to_str().unwrap()) && told.contains(before.to_str().unwrap()), "{told}");
    assert_eq!(loaded(&config, &file), ITEMS / 2, "as it was");
    assert_eq!(loaded(&config, &rescue), ITEMS);
    remove(&file);
}

/// Makes a core fail so that its items cannot be read, and returns the server's report.
fn fail_unreadable(name: &str, write_before: impl FnOnce(&Path)) -> (String, ServerConfig, PathBuf) {
    let (server, config, file) = fragile(name, true);
    write_before(&file);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS);
    client.say(b"set panic 0 0 1\r\nx\r\n");
    wait_for_the_end(&server);
    (told(&server.stop().unwrap_err()), config, file)
}

#[test]
fn a_rescue_takes_a_name_that_no_earlier_rescue_has() {
    let earlier = |file: &Path| {
        rescues(file)[..2].iter().for_each(|rescue| std::fs::write(rescue, b"an earlier rescue").unwrap());
    };
    let (told, config, file) = fail_unreadable("rescue-again", earlier);
    let rescues = rescues(&file);
    assert!(told.contains(rescues[2].to_str().unwrap()), "{told}");
    assert!(rescues[..2].iter().all(|rescue| std::fs::read(rescue).unwrap() == b"an earlier rescue"));
    let rescued = loaded(&config, &rescues[2]);
    assert!((ITEMS / 4..ITEMS).contains(&rescued), "{rescued} items of the core that is whole");
    remove(&file);
}

#[test]
fn a_server_whose_rescues_nobody_looked_at_replaces_none_of_them_and_says_what_to_do() {
    // The last one is of all cores, for which no name was free.
    let all = |file: &Path| [rescues(file), vec![file.with_extension("snapshot.rescue.part")]].concat();
    let earlier =
        |file: &Path| all(file).iter().for_each(|rescue| std::fs::write(rescue, b"an earlier rescue").unwrap());
    let (told, _, file) = fail_unreadable("rescue-full", earlier);
    let names = format!("{0}.rescue to {0}.rescue.7", file.display());
    assert!(told.contains("nothing was saved") && told.contains(&names) && told.contains("move away"), "{told}");
    let kept = |rescue: &PathBuf| std::fs::read(rescue).is_ok_and(|bytes| bytes == b"an earlier rescue");
    assert!(all(&file).iter().all(kept), "{told}");
    assert!(!file.exists() && !file.with_extension("snapshot.rescue.scratch").exists());
    remove(&file);
}

#[test]
fn what_all_cores_have_is_saved_however_many_rescues_nobody_looked_at() {
    let (server, config, file) = fragile("rescue-full-whole", false);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS / 2);
    server.save().unwrap();
    rescues(&file).iter().for_each(|rescue| std::fs::write(rescue, b"an earlier rescue").unwrap());
    client.fill("key", ITEMS);
    client.say(b"set panic 0 0 1\r\nx\r\n");
    wait_for_the_end(&server);
    let told = told(&server.stop().unwrap_err());
    assert!(told.contains(&format!("all {ITEMS} items")), "{told}");
    assert!(rescues(&file).iter().all(|rescue| std::fs::read(rescue).unwrap() == b"an earlier rescue"));
    assert_eq!(loaded(&config, &file), ITEMS);
    remove(&file);
}

#[test]
fn what_all_cores_have_is_kept_when_every_name_for_it_is_taken() {
    // The first failure takes the last name; the second leaves that alone.
    for (at, extension) in ["snapshot.rescue.new", "snapshot.rescue.part"].into_iter().enumerate() {
        let (server, config, file) = fragile(&format!("rescue-full-before{at}"), false);
        let mut client = Client::connect(&config);
        client.fill("key", ITEMS / 2);
        server.save().unwrap();
        let mut earlier = rescues(&file);
        earlier.push(file.with_extension("snapshot.before"));
        if at == 1 {
            earlier.push(file.with_extension("snapshot.rescue.new"));
        }
        earlier.iter().for_each(|earlier| std::fs::write(earlier, b"an earlier rescue").unwrap());
        client.fill("key", ITEMS);
        client.say(b"set panic 0 0 1\r\nx\r\n");
        wait_for_the_end(&server);
        let told = told(&server.stop().unwrap_err());
        let rescue = file.with_extension(extension);
        assert!(told.contains(&format!("all {ITEMS} items were saved to {}", rescue.display())), "{told}");
        assert!(earlier.iter().all(|earlier| std::fs::read(earlier).unwrap() == b"an earlier rescue"));
        assert_eq!(loaded(&config, &file), ITEMS / 2, "as it was");
        assert_eq!(loaded(&config, &rescue), ITEMS);
        remove(&file);
    }
}

#[test]
fn a_core_that_hangs_in_the_middle_of_a_snapshot_does_not_keep_the_server_from_ending() {
    let mut settings = config("hang", 2);
    (settings.patience, settings.hang_max) = (Duration::ZERO, Duration::from_secs(1));
    let (server, config, file, gate) = gated(false, settings);
    let mut client = Client::connect(&config);
    client.fill("key", ITEMS);
    client.ask(b"set hang 0 0 1\r\nx\r\n", b"STORED\r\n");
    let saving = server.begin_save().unwrap();
    while !gate.has_comers() {
        std::thread::yield_now();
    }
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(server.stop()));
    let stopped = end.recv_timeout(PATIENCE);
    gate.open();
    let told = told(&stopped.expect("it ends").unwrap_err());
    drop(saving);
    let rescue = file.with_extension("snapshot.rescue");
    assert!(told.contains("has not answered") && told.contains(rescue.to_str().unwrap()), "{told}");
    // At other addresses: the hung core has not released its own yet.
    let mut other = super::client::config("hang-other", config.cores);
    other.mode = Mode::Store;
    let rescued = loaded(&other, &rescue);
    assert!((ITEMS / 4..ITEMS).contains(&rescued), "{rescued} items of the core that answers");
    remove(&file);
}
