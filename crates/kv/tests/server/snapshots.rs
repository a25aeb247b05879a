//! Another server loads a saved snapshot, or reports what does not fit.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dunlin_kv::server::{Server, ServerConfig, ServerError};
use dunlin_store::snapshot::{NoRoom, SnapshotError};
use dunlin_store::{MEMORY_BYTES_MIN, Mode, Partition, Shape};

use super::client::{Client, config, path};
use super::fragile::{Fragile, TICK, Ticks};

/// Rejections in a row after which every core counts as full.
const REFUSED_MAX: u32 = 300;

fn settings(name: &str, cores: u16, snapshot: &Path) -> ServerConfig {
    let mut config = config(name, cores);
    config.mode = Mode::Store;
    config.memory_bytes = usize::from(cores) * MEMORY_BYTES_MIN;
    config.snapshot = Some(snapshot.to_owned());
    config
}

/// Fills a store until it accepts nothing more, and returns the number of items stored.
fn fill(client: &mut Client, key: &str) -> u64 {
    let (mut number, mut stored, mut refused) = (0, 0, 0);
    while refused < REFUSED_MAX {
        // Of all lengths, in the index and in the log.
        let value = "v".repeat(number * 37 % 400);
        client.say(format!("set {key}{number} 0 0 {}\r\n{value}\r\nmn\r\n", value.len()).as_bytes());
        let is_stored = client.until(b"MN\r\n").starts_with(b"STORED");
        (stored, refused) = if is_stored { (stored + 1, 0) } else { (stored, refused + 1) };
        number += 1;
    }
    stored
}

fn items(server: &Server) -> u64 {
    server.stats().store().items
}

#[test]
fn a_full_store_of_several_cores_loads_what_it_saved_again_and_again() {
    let file = path("full").with_extension("snapshot");
    let config = settings("full", 3, &file);
    let mut server = Server::start(config.clone(), |_| {}).unwrap();
    let stored = fill(&mut Client::connect(&config), "k");
    for round in 0..8 {
        assert_eq!(items(&server), stored, "round {round}");
        server.stop().unwrap();
        server = Server::start(config.clone(), |_| {}).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        // Full to the last byte of another order, too.
        if round == 3 {
            let mut client = Client::connect(&config);
            (0..40).for_each(|number| client.ask(format!("delete k{number}\r\n").as_bytes(), b"DELETED\r\n"));
            let refilled = fill(&mut client, "other");
            server.stop().unwrap();
            server = Server::start(config.clone(), |_| {}).unwrap();
            assert_eq!(items(&server), stored - 40 + refilled);
            break;
        }
    }
    server.stop().unwrap();
    fs::remove_file(&file).unwrap();
}

#[test]
fn other_cores_and_more_memory_load_it_too() {
    let file = path("other").with_extension("snapshot");
    let config = settings("other", 2, &file);
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let stored = fill(&mut Client::connect(&config), "k");
    server.stop().unwrap();
    for cores in [1, 3, 2, 5] {
        let mut more = settings("other", cores, &file);
        more.memory_bytes = usize::from(cores) * 4 * MEMORY_BYTES_MIN;
        let server = Server::start(more.clone(), |_| {}).unwrap_or_else(|error| panic!("{cores} cores: {error:?}"));
        assert_eq!(items(&server), stored, "{cores} cores");
        server.stop().unwrap();
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn a_store_with_too_little_memory_says_how_much_has_no_room_on_all_cores() {
    let file = path("less").with_extension("snapshot");
    let config = settings("less", 4, &file);
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let stored = fill(&mut Client::connect(&config), "k");
    server.stop().unwrap();
    let before = fs::read(&file).unwrap();
    let less = settings("less", 2, &file);
    let error = Server::start(less, |_| {}).err().unwrap();
    let ServerError::Load { source: SnapshotError::NoRoom(no_room), .. } = &error else { panic!("{error:?}") };
    let NoRoom { items, of, memory, taken_of, .. } = *no_room;
    assert_eq!((of, taken_of), (stored, Some((4, 4 * MEMORY_BYTES_MIN as u64))));
    assert!(items > stored / 4 && memory <= 2 * MEMORY_BYTES_MIN as u64, "{no_room:?}");
    let told = no_room.to_string();
    assert!(told.contains(&items.to_string()) && told.contains("taken of 4 cores"), "{told}");
    assert_eq!(fs::read(&file).unwrap(), before, "what was saved is not touched");
    fs::remove_file(&file).unwrap();
}

/// A scheduled flush would spoil the last snapshot.
#[test]
fn nothing_falls_due_while_the_last_snapshot_is_saved() {
    let file = path("due").with_extension("snapshot");
    let mut config = settings("due", 1, &file);
    config.tick = TICK;
    let ticks = Arc::new(Ticks::default());
    let of_partition = ticks.clone();
    let make = move |config, _: Option<&Shape>| {
        let partition = Partition::new(config)?;
        let (ticks, unreadable, gate) = (of_partition.clone(), Arc::default(), Arc::default());
        Ok(Fragile { partition, is_broken: false, unreadable, ticks, has_no_stats: false, hangs: false, gate })
    };
    let server = Server::start_with(config.clone(), make, |_| {}).unwrap();
    Client::connect(&config).fill("key", 10);
    assert_eq!(server.stop().unwrap().unwrap().totals.records, 10);
    assert_eq!((ticks.is_visited.load(Ordering::Relaxed), ticks.since.load(Ordering::Relaxed)), (true, 0));
    fs::remove_file(&file).unwrap();
}
