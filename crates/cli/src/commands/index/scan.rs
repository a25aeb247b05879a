//! `dunlin index scan`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use dunlin_index::wire::{LONG_PAGE, PageLimits, SHORT_PAGE};
use dunlin_index::{ClientConfig, Gap, Order, Range};
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Client, Found, Lines, Purpose, Server, ask};
use crate::output;

/// Print the items of a range in the order of their keys
///
/// Each item is a line with key and value, separated by a tab, in which \t \n \r \\ \xHH stand for bytes. What is
/// written meanwhile may be in it or not. Exit code 0, also if there are none; 2 if the scan failed: what was printed
/// until then is right.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index scan --at shm:index                               everything
  export DUNLIN_AT=shm:index
  dunlin index scan --prefix bird/ --count 10                    the first ten
  dunlin index scan --prefix bird/ --past bird/knot --count 10  and the next ten
  dunlin index scan --from a --to c --backwards                  from below c down to a
  dunlin index scan --prefix bird/ --total                       how many there are")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// The first key of the range
    #[arg(long, value_name = "KEY", conflicts_with = "past")]
    from: Option<String>,
    /// Only keys after this one, such as the last one of a scan before
    #[arg(long, value_name = "KEY")]
    past: Option<String>,
    /// The end of the range: the first key that is not in it
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Begin with the last key
    #[arg(long)]
    backwards: bool,
    /// End after so many items
    #[arg(long, value_name = "NUMBER", value_parser = RangedU64ValueParser::<u64>::new().range(1..), conflicts_with = "total")]
    count: Option<u64>,
    /// Print only how many items there are; the server counts them
    #[arg(long)]
    total: bool,
    /// Print JSON: each item as one line
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn range(&self) -> Result<Range<'_>> {
        let (prefix, past) = (self.prefix.as_deref(), self.past.as_deref());
        if let (Some(prefix), Some(past)) = (prefix, past) {
            ensure!(
                past.starts_with(prefix),
                "{past:?} of --past does not begin with {prefix:?} of --prefix: give one of them"
            );
        }
        let (from, to) = (self.from.as_deref().or(prefix).unwrap_or_default(), self.to.as_deref());
        let low = past.map_or(Gap::Before(from.as_bytes()), |past| Gap::After(past.as_bytes()));
        let high = to.map_or(Gap::AfterPrefix(prefix.unwrap_or_default().as_bytes()), |to| Gap::Before(to.as_bytes()));
        Ok(Range { low, high })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let range = arguments.range()?;
    ask(&arguments.server, interrupt, Purpose::Reads, async |client| {
        if !arguments.total {
            return print(arguments, range, client).await;
        }
        let items = client.count(range).await?;
        if arguments.json {
            output::line(json!({ "items": items }))?
        } else {
            output::line(items)?
        }
        Ok(Found::All)
    })
}

async fn print(arguments: &Arguments, range: Range<'_>, client: &Client) -> Result<Found> {
    let order = if arguments.backwards { Order::Descending } else { Order::Ascending };
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let mut pages = client.scan_with(range, order, limits(left))?;
    let mut lines = Lines::new(arguments.json)?;
    while left > 0
        && let Some(page) = pages.next().await?
    {
        for (key, value) in page.items().take(left.try_into().unwrap_or(usize::MAX)) {
            lines.item(key, value)?;
            left -= 1;
        }
    }
    lines.end()?;
    Ok(Found::All)
}

/// The limits of the pages of a scan that ends after so many items. A few are short pages, which need no worker.
fn limits(count: u64) -> PageLimits {
    if count <= SHORT_PAGE.items.into() {
        return PageLimits { items: count as u32, ..SHORT_PAGE };
    }
    let PageLimits { items, bytes } = ClientConfig::default().page;
    PageLimits { items: count.min(items.min(LONG_PAGE.items).into()) as u32, bytes }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        let command = Arguments::augment_args(Command::new("scan"));
        let words = ["scan", "--at", "shm:index"].iter().chain(words);
        command.try_get_matches_from(words).and_then(|matches| Arguments::from_arg_matches(&matches))
    }

    #[test]
    fn a_few_items_need_no_worker() {
        for count in [1, 10, 64] {
            assert!(limits(count).are_within(SHORT_PAGE) && u64::from(limits(count).items) == count, "{count}");
        }
        for count in [65, 5000, u64::MAX] {
            assert!(limits(count).are_within(LONG_PAGE) && !limits(count).are_within(SHORT_PAGE), "{count}");
        }
    }

    #[test]
    fn options_make_a_range() {
        for (words, low, high) in [
            (&[][..], Gap::Before(&b""[..]), Gap::AfterPrefix(&b""[..])),
            (&["--prefix", "a"], Gap::Before(b"a"), Gap::AfterPrefix(b"a")),
            (&["--prefix", "a", "--past", "ab"], Gap::After(b"ab"), Gap::AfterPrefix(b"a")),
            (&["--from", "a", "--to", "b"], Gap::Before(b"a"), Gap::Before(b"b")),
            (&["--past", "a"], Gap::After(b"a"), Gap::AfterPrefix(b"")),
        ] {
            assert_eq!(parse(words).unwrap().range().unwrap(), Range { low, high }, "{words:?}");
        }
        let refused = parse(&["--prefix", "a", "--past", "b"]).unwrap().range().unwrap_err().to_string();
        assert!(refused.contains("does not begin with"), "{refused}");
        for words in [
            &["--prefix", "a", "--from", "a"][..],
            &["--from", "a", "--past", "a"],
            &["--count", "0"],
            &["--count", "1", "--total"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
