//! Endpoints in a file system that is too small for them, as a container's `/dev/shm` often is.
//!
//! Each test mounts a small tmpfs in a mount namespace of its own, and is skipped if it may not.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::{NetError, Route, ShmName, Transport, TxPacket};

/// Runs `test` with a directory that is a tmpfs of `kib` KiB; on a thread of its own, since a namespace belongs to a
/// thread.
fn in_small_tmpfs(name: &str, kib: usize, test: impl FnOnce(&Path) + Send) {
    let directory = std::env::temp_dir().join(format!("dunlin-full-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| match mount(&directory, kib) {
            Ok(()) => test(&directory),
            Err(error) => eprintln!("skipped: a tmpfs cannot be mounted in a namespace of this thread: {error}"),
        });
    });
    std::fs::remove_dir(&directory).unwrap();
}

fn mount(at: &Path, kib: usize) -> std::io::Result<()> {
    let text = |text: &str| std::ffi::CString::new(text).unwrap();
    let (none, root, tmpfs) = (text("none"), text("/"), text("tmpfs"));
    let (at, size) = (text(at.to_str().unwrap()), text(&format!("size={kib}k")));
    // SAFETY: the strings live through the calls, which change only this thread's view of the file systems.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(none.as_ptr(), at.as_ptr(), tmpfs.as_ptr(), 0, size.as_ptr().cast()) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn config(directory: &Path, name: &str) -> ShmConfig {
    let mut config = ShmConfig::named(ShmName::new(name).unwrap());
    config.directory = directory.to_owned();
    config
}

/// Takes all the space that is left.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let mut file = File::create(&path).unwrap();
    for piece in [64 << 10, 4096] {
        while file.write(&vec![1; piece]).is_ok_and(|written| written == piece) {}
    }
    path
}

/// How many of `count` packets of `len` bytes, sent as one burst, are stored and arrive.
fn arriving(from: &mut ShmTransport, route: Route, to: &mut ShmTransport, len: usize, count: usize) -> usize {
    from.tx_burst(&vec![TxPacket { route, header: &vec![7; len], payload: &[] }; count]);
    let mut arrived = 0;
    loop {
        match to.rx_burst() {
            0 => return arrived,
            more => arrived += more,
        }
    }
}

#[test]
fn two_default_endpoints_in_2_mib_exchange_long_packets_when_nothing_is_left() {
    in_small_tmpfs("work", 2048, |directory| {
        let mut a = ShmTransport::new(&config(directory, "a")).unwrap();
        let mut b = ShmTransport::new(&config(directory, "b")).unwrap();
        fill(directory);
        let (to_a, to_b) = (b.resolve(&a.local_addr()).unwrap(), a.resolve(&b.local_addr()).unwrap());
        for _ in 0..100 {
            assert_eq!(arriving(&mut a, to_b, &mut b, 8224, 8), 8);
            assert_eq!(arriving(&mut b, to_a, &mut a, 300, 8), 8);
        }
    });
}

#[test]
fn what_cannot_be_stored_is_counted_until_there_is_room_again() {
    in_small_tmpfs("count", 4096, |directory| {
        let mut a = ShmTransport::new(&config(directory, "a")).unwrap();
        let mut b = ShmTransport::new(&config(directory, "b")).unwrap();
        let filler = fill(directory);
        let route = a.resolve(&b.local_addr()).unwrap();
        let stored = arriving(&mut a, route, &mut b, 8000, 1000);
        let counters = a.counters();
        assert!((16..1000).contains(&stored), "{stored}");
        assert_eq!((counters.tx_dropped_no_memory, counters.tx_dropped_full), (1000 - stored as u64, 0));
        assert_eq!(counters.tx_packets, stored as u64);
        std::fs::remove_file(filler).unwrap();
        let stored = (0..10).map(|_| arriving(&mut a, route, &mut b, 8000, 64)).max();
        assert_eq!(stored, Some(64), "the file system has room again");
    });
}

#[test]
fn an_endpoint_that_could_not_work_says_what_is_missing() {
    let small = |directory: &Path, name: &str| {
        let mut config = config(directory, name);
        (config.queue_len, config.senders_max) = (64, 16);
        config
    };
    // There is room for the queue, but not for long packets.
    in_small_tmpfs("refuse", 64, |directory| {
        let error = ShmTransport::new(&small(directory, "a")).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, NetError::Io { .. }), "{message}");
        for part in [directory.to_str().unwrap(), "bytes", "--shm-size", "No space left"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "nothing stays behind");
    });
}
