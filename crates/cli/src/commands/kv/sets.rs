//! `dunlin kv set`.

use std::io::{Read, stdin};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dunlin_kv::client::KvError;
use dunlin_store::{Condition, Put, Refused, UnixSeconds};

use super::client::{Found, Server, ask};

/// Seconds that an item may live, from when it is stored: ten years. The server keeps times until 2106.
const LIFE_SECONDS_MAX: f64 = 10.0 * 365.0 * 86_400.0;

/// Store a value
///
/// Exit code 0 if it was stored, 1 if --if does not hold, 2 if the server could not be asked or has no place.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv set shm:kv bird dunlin
  dunlin kv set shm:kv session 12345 --expires 3600       gone after an hour
  dunlin kv set shm:kv photo < photo.jpeg                 a value from a file
  dunlin kv set shm:kv lock me --if absent                only if there is no such item")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The key
    key: String,
    /// The value; without it, it is read from the standard input
    value: Option<String>,
    /// 32 bits to keep beside the value
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    flags: u32,
    /// Seconds after which the item is gone, up to ten years; the server keeps whole seconds, so it may live up to one longer
    #[arg(long, value_name = "SECONDS", value_parser = life, allow_negative_numbers = true)]
    expires: Option<Duration>,
    /// When to store: `absent` or `present` items only, or those that still have a CAS `TOKEN`
    #[arg(long = "if", value_name = "absent|present|TOKEN", value_parser = condition)]
    condition: Option<Condition>,
}

fn life(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds > 0.0 && seconds <= LIFE_SECONDS_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("give more than 0 and up to {LIFE_SECONDS_MAX} seconds, which are ten years"))
    }
}

fn condition(text: &str) -> Result<Condition, String> {
    match text {
        "absent" => Ok(Condition::Absent),
        "present" => Ok(Condition::Present),
        token => token.parse().map(Condition::Unchanged).map_err(|_| "give absent, present, or a CAS token".into()),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.server, async |client| {
        let value = match &arguments.value {
            Some(value) => value.clone().into_bytes(),
            None => read_input(dunlin_store::VALUE_BYTES_MAX)?,
        };
        let expires = arguments.expires.map(|after| unix_seconds(SystemTime::now() + after)).transpose()?;
        let condition = arguments.condition.unwrap_or_default();
        let put = Put { flags: arguments.flags, expires, condition, ..Put::default() };
        match client.put(arguments.key.as_bytes(), &value, put).await {
            Ok(_) => Ok(Found::All),
            Err(KvError::Refused(why @ (Refused::NotFound | Refused::Exists | Refused::Changed))) => {
                eprintln!("dunlin: not stored: {why}");
                Ok(Found::NotAll)
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// Reads up to one byte more than the longest value: enough to see that it is too long.
fn read_input(max: usize) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    stdin().lock().take(max as u64 + 1).read_to_end(&mut value).context("cannot read the value from the standard input")?;
    Ok(value)
}

/// Rounded up: an item lives at least as long as asked.
fn unix_seconds(time: SystemTime) -> Result<UnixSeconds> {
    let since = time.duration_since(UNIX_EPOCH).context("the clock of this machine is before 1970")?;
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    seconds.try_into().context("the item would expire after 2106")
}
