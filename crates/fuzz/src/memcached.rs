//! Bytes of a memcached client, in pieces and whole: the same answers, and no more memory than a command may need.
//!
//! The first two bytes seed where the rest is cut.

use dunlin_kv::memcached::{ConnectionLimit, Conversation, Settings, Single, limits};
use dunlin_store::{Model, VALUE_BYTES_MAX};

const NOW: u32 = 1_700_000_000;

/// Longest answer to one unit besides a value: its line, with a key.
const ANSWER_LINE_BYTES_MAX: usize = 1024;

fn settings() -> Settings {
    Settings::new(ConnectionLimit::new(1), None, NOW, Vec::new())
}

/// What a new server answers, and whether it closed the connection.
fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let (core, settings) = (Single::new(Model::new(), NOW), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answers = Vec::new();
    for piece in pieces {
        let most = client.say(piece, &mut answers);
        assert!(
            most <= limits::OUTPUT_BYTES_MAX + VALUE_BYTES_MAX + ANSWER_LINE_BYTES_MAX,
            "{most} bytes wait to be written"
        );
        let line = limits::RETRIEVAL_LINE_BYTES_MAX.max(limits::LINE_BYTES_MAX + VALUE_BYTES_MAX + 2);
        assert!(client.pending() <= line, "{} bytes are kept", client.pending());
    }
    (answers, client.is_closed())
}

/// Checks one input.
pub fn check(bytes: &[u8]) {
    let Some((seed, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let whole = run(std::iter::once(bytes));
    let mut state = u32::from(u16::from_le_bytes(*seed)) | 1 << 16;
    let mut rest = bytes;
    let pieces = std::iter::from_fn(|| {
        // A generator of little randomness is enough to cut.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = ((state >> 24) as usize % 23 + 1).min(rest.len());
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    });
    // "stats" tells the processor time, which moves.
    let is_stats = bytes.windows(5).any(|window| window == b"stats");
    let cut = run(pieces);
    assert!(
        is_stats || cut == whole,
        "{:?} in pieces, {:?} whole",
        String::from_utf8_lossy(&cut.0),
        String::from_utf8_lossy(&whole.0)
    );
}
