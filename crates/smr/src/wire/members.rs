//! The replicas and their addresses.

use std::collections::BTreeMap;

use super::WireError;
use super::bytes::{Reader, Writer};

/// Longest address, in bytes.
pub(crate) const ADDRESS_BYTES_MAX: usize = 1024;
/// Maximum number of replicas in a cluster, including learners.
pub(crate) const MEMBERS_MAX: usize = 64;

/// Addresses by the id of a replica.
pub(crate) type Members = BTreeMap<u64, String>;

/// Returns their length in bytes.
pub(crate) fn encoded_len(members: &Members) -> usize {
    4 + members.values().map(|address| 12 + address.len()).sum::<usize>()
}

/// Encodes them.
pub(crate) fn encode(writer: &mut Writer<'_>, members: &Members) {
    writer.u32(members.len() as u32);
    for (id, address) in members {
        writer.u64(*id);
        writer.counted(address.as_bytes());
    }
}

/// Parses them.
pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Members, WireError> {
    let count = reader.u32()? as usize;
    if count > MEMBERS_MAX {
        return Err(WireError::Unknown { field: "number of members", value: count as u64 });
    }
    (0..count).map(|_| Ok((reader.u64()?, parse_address(reader.counted()?)?))).collect()
}

/// Parses an address.
pub(crate) fn parse_address(bytes: &[u8]) -> Result<String, WireError> {
    let unknown = WireError::Unknown { field: "address", value: bytes.len() as u64 };
    if bytes.len() > ADDRESS_BYTES_MAX {
        return Err(unknown);
    }
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| unknown)
}
