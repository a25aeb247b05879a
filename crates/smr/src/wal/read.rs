//! Reads entries from the disk.

use std::cell::RefCell;

use super::disk::{Disk, DiskFile};
use super::error::WalError;
use super::segment::segment_name;
use super::state::Slot;

/// Reads entries at their places. Keeps the last file that it read from open.
#[derive(Debug)]
pub struct Reader<D: Disk> {
    disk: D,
    open: RefCell<Option<(u64, D::File)>>,
}

impl<D: Disk> Reader<D> {
    pub fn new(disk: D) -> Reader<D> {
        Reader { disk, open: RefCell::new(None) }
    }

    /// A segment was removed.
    pub fn forget(&mut self, segment: u64) {
        self.open.get_mut().take_if(|(open, _)| *open == segment);
    }

    /// Reads the payload of an entry.
    pub fn read(&self, index: u64, slot: &Slot, payload: &mut Vec<u8>) -> Result<(), WalError> {
        if slot.segment == Slot::STAGED {
            return Err(WalError::NotWritten { index });
        }
        let name = segment_name(slot.segment);
        let io = |what, source| WalError::Io { what, path: self.disk.place(&name), source };
        let file = match self.open.take() {
            Some((segment, file)) if segment == slot.segment => file,
            _ => match self.disk.open(&name) {
                Ok(file) => file,
                // Its segment has not been created yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(WalError::NotWritten { index });
                }
                Err(source) => return Err(io("open", source)),
            },
        };
        payload.resize(slot.payload_bytes as usize, 0);
        let read = file.read_at(u64::from(slot.offset), payload).map_err(|source| io("read", source))?;
        self.open.replace(Some((slot.segment, file)));
        if read < payload.len() || crc32c::crc32c(payload) != slot.checksum {
            return Err(WalError::Damaged {
                path: self.disk.place(&name),
                offset: u64::from(slot.offset),
                what: "an entry is not as it was written",
            });
        }
        Ok(())
    }
}
