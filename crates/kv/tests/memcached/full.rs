//! A store without any memory left: growing an item's metadata is rejected with an error, and nothing is lost.

use dunlin_kv::memcached::{Conversation, Settings, Single};
use dunlin_store::{Mode, Partition, PartitionConfig};

use super::script::{START, settings};

/// With a key of 16 bytes it fills a line of the index, which then has no room for an expiry.
const VALUE: &str = "thirty-six bytes of value, no less!!";

/// A server of one partition, and a client.
struct Full {
    core: Single<Partition>,
    settings: Settings,
    items: u32,
}

fn key(number: u32) -> String {
    format!("key-{number:012}")
}

impl Full {
    /// Stores items until there is no memory for another one.
    fn new() -> Full {
        let partition = Partition::with_secret(PartitionConfig::new(Mode::Store, 1 << 20), [1, 2]).expect("1 MiB");
        let mut full = Full { core: Single::new(partition, START), settings: settings(), items: 0 };
        while full.say(&format!("set {} 0 0 36\r\n{VALUE}\r\n", key(full.items))) == "STORED\r\n" {
            full.items += 1;
        }
        full
    }

    fn say(&self, request: &str) -> String {
        let mut answer = Vec::new();
        Conversation::new(&self.core, &self.settings).say(request.as_bytes(), &mut answer);
        String::from_utf8(answer).expect("text")
    }

    /// Touches all items, and returns those for which there was no memory.
    fn untouched(&self) -> Vec<String> {
        let touch = |key: &String| self.say(&format!("touch {key} 1000\r\n")) == "SERVER_ERROR out of memory\r\n";
        (0..self.items).map(key).filter(touch).collect()
    }
}

#[test]
fn an_item_without_room_for_an_expiry_is_not_touched_and_not_lost() {
    let full = Full::new();
    let untouched = full.untouched();
    assert!(untouched.len() > 100, "{} of {} could not be touched", untouched.len(), full.items);
    let (a, b) = (&untouched[0], &untouched[1]);
    let error = "SERVER_ERROR out of memory\r\n";
    assert_eq!(full.say(&format!("touch {a} 1000 noreply\r\n")), "", "silence is kept even then");
    assert_eq!(full.say(&format!("gat 1000 {a}\r\n")), error);
    assert_eq!(full.say(&format!("gats 1000 {a}\r\nmn\r\n")), format!("{error}MN\r\n"));
    assert_eq!(
        full.say(&format!("gat 1000 {a} none {b}\r\nmn\r\n")),
        "END\r\nMN\r\n",
        "of several keys it is left out"
    );
    assert_eq!(full.say(&format!("mg {a} v T1000\r\n")), error);
    assert_eq!(full.say(&format!("mg {a} v q T1000\r\nmn\r\n")), format!("{error}MN\r\n"));
    assert_eq!(full.say(&format!("md {a} I T1000\r\n")), error);
    assert_eq!(full.say(&format!("md {a} I E18446744073709551615\r\n")), error);
    assert_eq!(full.say("touch none 1000\r\n"), "NOT_FOUND\r\n");
    // A time in the past needs no memory.
    assert_eq!(full.say(&format!("gat -1 {b}\r\n")), format!("VALUE {b} 0 36\r\n{VALUE}\r\nEND\r\n"));
    assert_eq!(full.say(&format!("get {a} {b}\r\n")), format!("VALUE {a} 0 36\r\n{VALUE}\r\nEND\r\n"));
    assert_eq!(full.say(&format!("mg {a} v t\r\n")), format!("VA 36 t-1\r\n{VALUE}\r\n"), "neither stale nor won");
    for number in 0..full.items {
        let key = key(number);
        let expected = if key == *b { "EN\r\n".to_owned() } else { format!("VA 36\r\n{VALUE}\r\n") };
        assert_eq!(full.say(&format!("mg {key} v\r\n")), expected);
    }
}

#[test]
fn what_cannot_be_appended_to_stays() {
    let full = Full::new();
    // An item that fills its line and finds no room in the log, whatever the length of its value.
    let key = full.untouched().pop().expect("some could not be touched");
    assert_eq!(full.say(&format!("append {key} 0 0 1\r\n!\r\n")), "SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(full.say(&format!("ms {key} 1 MA\r\n!\r\n")), "SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(full.say(&format!("mg {key} v\r\n")), format!("VA 36\r\n{VALUE}\r\n"));
}
