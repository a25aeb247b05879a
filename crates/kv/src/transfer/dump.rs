//! Dumps the records of a server or of a snapshot.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use dunlin_net::Transport;
use dunlin_records::{Record, Writer};
use dunlin_store::snapshot::{Reader, SnapshotError};
use thiserror::Error;

use crate::client::{KvClient, KvError};

/// Why a dump is incomplete.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// Reading from the server failed.
    #[error(transparent)]
    Server(#[from] KvError),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The records cannot be written.
    #[error("cannot write the records: {0}")]
    Write(io::Error),
    /// The caller ended it.
    #[error("interrupted")]
    Interrupted,
}

/// Writes every record of a server, as [`KvClient::scan`] returns them, and returns their number. `watch` gets the
/// number so far after each; if it returns false, the dump ends.
///
/// # Errors
/// [`DumpError`].
pub async fn dump_server<T: Transport + 'static, W: Write>(
    client: &KvClient<T>,
    writer: &mut Writer<W>,
    watch: &mut impl FnMut(u64) -> bool,
) -> Result<u64, DumpError> {
    let (mut records, mut failure) = (0, None);
    let each = |record: Record| match write(writer, &record, &mut records, watch) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    };
    client.scan(each).await?;
    failure.map_or(Ok(records), Err)
}

/// Writes every record of a snapshot, and returns their number. `watch` gets the number so far after each; if it
/// returns false, the dump ends.
///
/// # Errors
/// [`DumpError`]. The records written until then are correct; the rest is missing.
pub fn dump_snapshot<W: Write>(
    snapshot: &mut Reader<impl Read>,
    writer: &mut Writer<W>,
    watch: &mut impl FnMut(u64) -> bool,
) -> Result<u64, DumpError> {
    let mut records = 0;
    while let Some(block) = snapshot.next_block()? {
        for record in block {
            let item = record?;
            let record =
                Record { key: item.key.to_vec(), value: item.value.to_vec(), flags: item.flags, expires: item.expires };
            write(writer, &record, &mut records, watch)?;
        }
    }
    Ok(records)
}

fn write<W: Write>(
    writer: &mut Writer<W>,
    record: &Record,
    records: &mut u64,
    watch: &mut impl FnMut(u64) -> bool,
) -> Result<(), DumpError> {
    writer.write(record).map_err(DumpError::Write)?;
    *records += 1;
    if watch(*records) { Ok(()) } else { Err(DumpError::Interrupted) }
}
