//! Any bytes, split in any way: never a panic, never more memory than a command may need, and the same result for any
//! split.

use proptest::collection::vec;
use proptest::prelude::*;

use super::script::{core, settings};
use dunlin_kv::memcached::Conversation;

/// Words of the protocol, so that some of the input is meaningful.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "get ",
        "gets ",
        "gat ",
        "set ",
        "add ",
        "cas ",
        "append ",
        "incr ",
        "decr ",
        "delete ",
        "touch ",
        "flush_all",
        "mg ",
        "ms ",
        "md ",
        "ma ",
        "me ",
        "mn",
        "quit",
        "a ",
        "b ",
        "0 ",
        "1 ",
        "2 ",
        "-1 ",
        "3000000000 ",
        "noreply",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        " ",
        "b ",
        "v ",
        "t ",
        "c ",
        "q ",
        "k ",
        "T30 ",
        "N30 ",
        "R60 ",
        "C1 ",
        "E5 ",
        "I ",
        "x ",
        "O1 ",
        "MA ",
        "Zm9v ",
        "xy\r\n",
        "\0",
    ];
    prop_oneof![
        9 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ]
}

fn run(pieces: &[Vec<u8>]) -> (Vec<u8>, bool) {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    for piece in pieces {
        client.say(piece, &mut answer);
    }
    (answer, client.is_closed())
}

proptest! {
    #[test]
    fn pieces_make_no_difference(pieces in vec(vec(word(), 0..12).prop_map(|words| words.concat()), 1..12)) {
        let whole = run(&[pieces.concat()]);
        prop_assert_eq!(&run(&pieces), &whole);
        let bytes: Vec<Vec<u8>> = pieces.concat().into_iter().map(|byte| vec![byte]).collect();
        prop_assert_eq!(&run(&bytes), &whole);
    }
}
