//! The subcommands.

#[cfg(feature = "bench")]
pub mod bench;
pub mod coord;
#[cfg(feature = "bench")]
pub mod demo;
#[cfg(feature = "bench")]
pub mod echo;
pub mod kv;
pub mod raft;
#[cfg(feature = "bench")]
pub mod sim;
pub mod top;

use std::time::Duration;

/// Seconds as the user writes them: `5`, `0.5`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("give between 0.01 and 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Warns that anyone who reaches a place may use it.
pub fn warn_of_exposure(place: &str) {
    eprintln!(
        "dunlin: warning: traffic at {place} is neither encrypted nor authenticated: let only those reach it whom you trust"
    );
}
