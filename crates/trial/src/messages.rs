//! Payloads in which every byte shows which message it belongs to and where in it.

/// Minimum length of a request that carries its number: shorter ones are anonymous.
pub const NAMED_BYTES_MIN: usize = 16;

/// Salt of responses, so that an echoed request is not mistaken for one.
const RESPONSE: u64 = 0x7265_7370_6f6e_7365;

fn word(name: u64, i: usize) -> [u8; 8] {
    (name ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).to_le_bytes()
}

fn fill(name: u64, bytes: &mut [u8]) {
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(name, i)[..chunk.len()]);
    }
}

fn is_filled(name: u64, bytes: &[u8]) -> bool {
    bytes.chunks(8).enumerate().all(|(i, chunk)| chunk == &word(name, i)[..chunk.len()])
}

/// A request of `len` bytes. If there is room, it begins with its number and the requested length of its response.
pub fn request(number: u64, len: usize, response_len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    if len < NAMED_BYTES_MIN {
        fill(len as u64, &mut bytes);
        return bytes;
    }
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..12].copy_from_slice(&(response_len as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    fill(number, &mut bytes[16..]);
    bytes
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The number of its call, in the ledger.
    pub number: u64,
    /// Bytes of the response that it requests.
    pub response_len: usize,
}

/// Reads a request; `Err` if it was changed, `Ok(None)` if it is anonymous.
pub fn parse(bytes: &[u8]) -> Result<Option<Named>, String> {
    if bytes.len() < NAMED_BYTES_MIN {
        let intact = is_filled(bytes.len() as u64, bytes);
        return if intact {
            Ok(None)
        } else {
            Err(format!("an anonymous request of {} bytes is damaged", bytes.len()))
        };
    }
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let number = u64::from(u32_at(0)) | u64::from(u32_at(4)) << 32;
    let (response_len, len) = (u32_at(8) as usize, u32_at(12) as usize);
    if len != bytes.len() || !is_filled(number, &bytes[16..]) {
        return Err(format!("request {number} says {len} bytes, and has {} or is damaged", bytes.len()));
    }
    Ok(Some(Named { number, response_len }))
}

/// Writes the response to a request.
pub fn fill_response(number: u64, bytes: &mut [u8]) {
    fill(number ^ RESPONSE, bytes);
}

/// Whether this is the whole response to a request.
pub fn is_response(number: u64, len: usize, bytes: &[u8]) -> bool {
    bytes.len() == len && is_filled(number ^ RESPONSE, bytes)
}

/// The message of a handler that answers with an application error. Its code is the number of the call.
pub const FAILURE: &str = "this call fails – as it shall";

/// Whether the handler of a call that has no response answers with an error.
pub fn fails_in_words(number: u64) -> bool {
    number % 2 == 1
}
