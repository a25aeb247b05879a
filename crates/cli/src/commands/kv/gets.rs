//! `dunlin kv get`.

use std::process::ExitCode;

use anyhow::Result;

use super::client::{Found, Server, ask};
use crate::output;

/// Print the value of a key
///
/// Exit code 0 if the item exists, 1 if it does not, 2 if the server could not be reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv get bird --at shm:kv
  dunlin kv get bird --at udp://127.0.0.1:7700 --timeout 500ms
  export DUNLIN_AT=shm:kv
  dunlin kv get photo > photo.jpeg          the bytes as they are
  dunlin kv get bird --facts                what else is known of the item")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The key
    key: String,
    /// Print version, flags, expiry and length instead of the value
    #[arg(long)]
    facts: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let key = arguments.key.as_bytes();
        if arguments.facts {
            let Some((facts, value)) = client.read(key).await? else { return Ok(Found::NotAll) };
            let expires = facts.expires.map_or("never".to_owned(), |at| format!("at {at} (seconds since 1970)"));
            let (length, flags, cas) = (value.len(), facts.flags, facts.cas);
            output::line(format_args!("version  {cas}\nlength   {length} B\nflags    {flags}\nexpires  {expires}"))?;
            return Ok(Found::All);
        }
        let Some(value) = client.get(key).await? else { return Ok(Found::NotAll) };
        output::value(&value)?;
        Ok(Found::All)
    })
}
