//! `dunlin kv set`.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dunlin_kv::client::KvError;
use dunlin_store::{Put, Refused, UnixSeconds};

use super::client::{Found, Server, ask};
use crate::arguments::condition::Condition;
use crate::arguments::time::time;
use crate::arguments::value;

/// How long an item may live, from when it is stored: ten years. The server keeps times until 2106.
pub const LIFE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10 * 365 * 86_400);

/// Store a value
///
/// Exit code 0 if it was stored, 1 if there is no item but must be, 3 if --if does not hold otherwise, 2 if it was not stored,
/// 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv set bird dunlin --at shm:kv
  export DUNLIN_AT=shm:kv
  dunlin kv set session 12345 --expires 1h        gone after an hour
  dunlin kv set photo - < photo.jpeg              a value from a file
  dunlin kv set lock me --if absent               only if there is no such item
  dunlin kv set bird knot --if version=17         only if nobody changed it: dunlin kv get bird --facts")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The key
    key: String,
    /// The value; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// 32 bits to keep beside the value
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    flags: u32,
    /// Time after which the item is gone, up to ten years; the server keeps whole seconds, so it may live up to one
    /// longer
    #[arg(long, value_name = "TIME", value_parser = time(LIFE))]
    expires: Option<Duration>,
    /// What must be so: absent, present, or version=NUMBER, which is memcached's CAS token
    #[arg(long = "if", value_name = "CONDITION")]
    condition: Option<Condition>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let value = value(&arguments.value, dunlin_store::VALUE_BYTES_MAX)?;
        let put = put(arguments.flags, arguments.expires, arguments.condition)?;
        match client.put(arguments.key.as_bytes(), &value, put).await {
            Ok(_) => Ok(Found::All),
            Err(KvError::Refused(why @ (Refused::NotFound | Refused::Exists | Refused::Changed))) => {
                eprintln!("dunlin: not stored: {why}");
                Ok(if why == Refused::NotFound { Found::NotAll } else { Found::NotAsExpected })
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// What is stored beside a value, and on which condition.
pub fn put(flags: u32, expires: Option<Duration>, condition: Option<Condition>) -> Result<Put> {
    let expires = expires.map(|after| unix_seconds(SystemTime::now() + after)).transpose()?;
    let condition = match condition {
        None => dunlin_store::Condition::Always,
        Some(Condition::Absent) => dunlin_store::Condition::Absent,
        Some(Condition::Present) => dunlin_store::Condition::Present,
        Some(Condition::Version(version)) => dunlin_store::Condition::Unchanged(version),
    };
    Ok(Put { flags, expires, condition, ..Put::default() })
}

/// Rounded up: an item lives at least as long as asked.
fn unix_seconds(time: SystemTime) -> Result<UnixSeconds> {
    let since = time.duration_since(UNIX_EPOCH).context("the clock of this machine is before 1970")?;
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    seconds.try_into().context("the item would expire after 2106")
}
