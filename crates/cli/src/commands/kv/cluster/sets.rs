//! `dunlin kv cluster set`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_kv::cluster::{ClusterConfig, ClusterError};
use dunlin_store::Refused;

use super::place::{Target, ask};
use crate::arguments::condition::Condition;
use crate::arguments::time::time;
use crate::arguments::value;
use crate::commands::kv::client::Found;
use crate::commands::kv::sets::{LIFE, put};

/// Store a value on all replicas
///
/// Exit code 0 if all live replicas have it, 1 if there is no item but must be, 3 if --if does not hold otherwise, 2 if
/// it was not stored, 4 if some replicas do not have it, or that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster set bird dunlin --at file:shop.toml
  dunlin kv cluster set photo - < photo.jpeg               a value from a file, after export DUNLIN_AT=file:shop.toml
  dunlin kv cluster set lock me --if absent                only if there is no such item")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The key
    key: String,
    /// The value; - reads it from the standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// 32 bits to keep beside the value
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    flags: u32,
    /// Time after which the item is gone, up to ten years; servers keep whole seconds, so it may live up to one longer
    #[arg(long, value_name = "TIME", value_parser = time(LIFE))]
    expires: Option<Duration>,
    /// What must be so: absent, present, or version=NUMBER
    #[arg(long = "if", value_name = "CONDITION")]
    condition: Option<Condition>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |cluster| {
        let value = value(&arguments.value, dunlin_store::VALUE_BYTES_MAX)?;
        let put = put(arguments.flags, arguments.expires, arguments.condition)?;
        match cluster.put(arguments.key.as_bytes(), &value, put).await {
            Ok(written) => {
                if written.absent > 0 {
                    eprintln!("dunlin: {} replicas are not live: they are filled before they are read", written.absent);
                }
                written.everywhere()?;
                Ok(Found::All)
            }
            Err(ClusterError::Refused(why @ (Refused::NotFound | Refused::Exists | Refused::Changed))) => {
                eprintln!("dunlin: not stored: {why}");
                Ok(if why == Refused::NotFound { Found::NotAll } else { Found::NotAsExpected })
            }
            Err(error) => Err(error.into()),
        }
    })
}
