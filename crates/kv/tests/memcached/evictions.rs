//! What operators see of evictions: their number, how many items were never read, how many had an expiry, and for how
//! long they had not been accessed.

use std::collections::BTreeMap;

use dunlin_kv::memcached::{Conversation, Single};
use dunlin_store::{Mode, Partition, PartitionConfig};

use super::script::{START, settings};

/// Items of the first half, which are read, and of the second half, which are not.
const HALF: u32 = 20_000;

fn say(core: &Single<Partition>, request: &str) -> String {
    let mut answer = Vec::new();
    Conversation::new(core, &settings()).say(request.as_bytes(), &mut answer);
    String::from_utf8(answer).expect("text")
}

fn stats(core: &Single<Partition>, request: &str) -> BTreeMap<String, u64> {
    let lines = say(core, request);
    let pairs = lines.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

#[test]
fn evictions_are_counted_by_what_was_lost() {
    let partition = Partition::with_secret(PartitionConfig::new(Mode::Cache, 1 << 20), [1, 2]).expect("1 MiB");
    let core = Single::new(partition, START);
    for number in 0..HALF {
        assert_eq!(say(&core, &format!("set read{number} 0 0 4\r\nread\r\n")), "STORED\r\n");
        assert!(say(&core, &format!("get read{number}\r\n")).starts_with("VALUE"));
    }
    let read = stats(&core, "stats\r\n");
    assert!(read["evictions"] > 0);
    assert_eq!(read["evicted_unfetched"], 0, "all were read");
    assert_eq!(stats(&core, "stats items\r\n")["items:1:evicted_nonzero"], 0, "none would have expired");
    core.set_now(START + 600);
    for number in 0..HALF {
        if number == HALF / 10 {
            // So far only items of the first half were evicted. The store counts minutes.
            let idle = stats(&core, "stats items\r\n")["items:1:evicted_time"];
            assert!((540..=660).contains(&idle), "evicted after {idle} s");
        }
        assert_eq!(say(&core, &format!("set unread{number} 0 100000 4\r\nread\r\n")), "STORED\r\n");
    }
    let all = stats(&core, "stats\r\n");
    let items = stats(&core, "stats items\r\n");
    assert!(all["evicted_unfetched"] > 0 && all["evicted_unfetched"] < all["evictions"], "{all:?}");
    assert_eq!(items["items:1:evicted"], all["evictions"]);
    assert_eq!(items["items:1:evicted_unfetched"], all["evicted_unfetched"]);
    assert_eq!(items["items:1:evicted_nonzero"], all["evicted_unfetched"], "what nobody read was what expires");
    assert!(items["items:1:evicted_time"] <= 660, "{items:?}");
    core.set_now(START + 600 + 100_000);
    assert_eq!(say(&core, "get unread19999\r\n"), "END\r\n");
    assert!(stats(&core, "stats\r\n")["expired_unfetched"] > 0);
}
