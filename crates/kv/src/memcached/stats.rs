//! `flush_all` and `stats`: commands for all cores.

use std::fmt::Display;
use std::io::Write as _;

use dunlin_store::StoreStats;
use dunlin_store::tier::TierStats;

use super::backend::{Backend, FlushTime, Inquiry, Report};
use super::batch::UNAVAILABLE;
use super::connections::ConnectionReport;
use super::counters::{Count, Counts};
use super::dump::{self, DumpRest};
use super::execute::expiry;
use super::limits::LIST_PART_BYTES;
use super::output::Output;
use super::parse::{Ask, StatsKind};
use super::service::Settings;
use super::socket::Listen;

/// `STAT` lines.
struct Lines<'a>(&'a mut Vec<u8>);

impl Lines<'_> {
    fn line(&mut self, name: impl Display, value: impl Display) {
        // Writing to a Vec cannot fail.
        let _ = write!(self.0, "STAT {name} {value}\r\n");
    }

    fn end(self) {
        self.0.extend_from_slice(b"END\r\n");
    }
}

/// The sums over all cores.
struct Totals {
    counts: Counts,
    store: StoreStats,
    tier: Option<TierStats>,
    connections: u64,
    connection_bytes: u64,
    connection_bytes_max: u64,
    cores: usize,
}

fn totals(reports: &[Report]) -> Totals {
    let mut totals = Totals {
        counts: Counts::default(),
        store: StoreStats::default(),
        tier: None,
        connections: 0,
        connection_bytes: 0,
        connection_bytes_max: 0,
        cores: reports.len(),
    };
    for report in reports {
        totals.counts += &report.counts;
        totals.connections += report.connections;
        totals.connection_bytes += report.connection_bytes;
        totals.connection_bytes_max += report.connection_bytes_max;
        let (sum, store) = (&mut totals.store, &report.store);
        sum.items += store.items;
        sum.item_bytes += store.item_bytes;
        sum.memory_bytes += store.memory_bytes;
        sum.memory_bytes_max = sum.memory_bytes_max.saturating_add(store.memory_bytes_max);
        sum.value_bytes_max = sum.value_bytes_max.max(store.value_bytes_max);
        sum.stored += store.stored;
        sum.evicted_log += store.evicted_log;
        sum.evicted_index += store.evicted_index;
        sum.expired += store.expired;
        sum.expired_unfetched += store.expired_unfetched;
        sum.evicted_unfetched += store.evicted_unfetched;
        sum.evicted_expiring += store.evicted_expiring;
        sum.evicted_idle_seconds = sum.evicted_idle_seconds.max(store.evicted_idle_seconds);
        if let Some(tier) = &report.tier {
            totals.tier.get_or_insert_default().add(tier);
        }
    }
    totals
}

/// Answers a command for all cores. A list is written part by part.
pub(super) async fn answer<B: Backend, O: Output>(
    ask: Ask,
    backend: &B,
    settings: &Settings,
    out: &mut Vec<u8>,
    client: &mut O,
) -> Result<(), O::Error> {
    let kind = match ask {
        Ask::Flush { exptime, is_quiet } => {
            backend.state().counters.add(Count::CmdFlush);
            let now = backend.now();
            let at = if exptime <= 0 { None } else { expiry(exptime, now).filter(|at| *at > now) };
            match backend.flush(at.map_or(FlushTime::Now, FlushTime::At)).await {
                Ok(()) if is_quiet => {}
                Ok(()) => out.extend_from_slice(b"OK\r\n"),
                // Reported even if no answer is wanted: something was not deleted.
                Err(_) => out.extend_from_slice(UNAVAILABLE),
            }
            return Ok(());
        }
        Ask::Stats(kind) => kind,
    };
    match kind {
        StatsKind::Reset => {
            backend.ask(Inquiry::Reset).await;
            out.extend_from_slice(b"RESET\r\n");
        }
        StatsKind::Settings => settings_lines(settings, backend, out),
        StatsKind::Sizes => {
            let mut lines = Lines(out);
            lines.line("sizes_status", "disabled");
            lines.end();
        }
        StatsKind::Dump { items_max } => dump(backend, items_max, out, client).await?,
        StatsKind::DumpNothing => out.extend_from_slice(b"END\r\n"),
        StatsKind::General => general(&totals(&backend.ask(Inquiry::Totals).await), backend.now(), settings, out),
        StatsKind::Items => items(&totals(&backend.ask(Inquiry::Totals).await), out),
        StatsKind::Slabs => slabs(&totals(&backend.ask(Inquiry::Totals).await), out),
        StatsKind::Connections => connections(backend, settings, out, client).await?,
    }
    Ok(())
}

/// Returns the processor time in seconds, in user mode and in the kernel; zero if /proc does not have it.
fn processor_seconds() -> (f64, f64) {
    /// The kernel's unit of time for user programs, on every architecture of Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in parentheses, may contain spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks =
        |at: usize| fields.split_whitespace().nth(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) / TICKS_PER_SECOND, ticks(12) / TICKS_PER_SECOND)
}

fn general(totals: &Totals, now: u32, settings: &Settings, out: &mut Vec<u8>) {
    let Totals { counts, store, tier, connections, connection_bytes, connection_bytes_max, cores } = totals;
    let (user, system) = processor_seconds();
    let mut lines = Lines(out);
    lines.line("pid", std::process::id());
    lines.line("uptime", now.saturating_sub(settings.started));
    lines.line("time", now);
    lines.line("version", super::VERSION);
    lines.line("pointer_size", usize::BITS);
    lines.line("rusage_user", format_args!("{user:.6}"));
    lines.line("rusage_system", format_args!("{system:.6}"));
    lines.line("max_connections", settings.connections_max);
    lines.line("curr_connections", connections);
    lines.line("conn_memory_bytes", connection_bytes);
    lines.line("conn_memory_limit", connection_bytes_max);
    for count in Count::ALL {
        // Rejections are counted where connections are accepted, not by a core.
        let value = if count == Count::RejectedConnections { settings.rejected() } else { counts.get(count) };
        lines.line(count.name(), value);
    }
    lines.line("limit_maxbytes", store.memory_bytes_max);
    lines.line("accepting_conns", u8::from(*connections < settings.connections_max as u64));
    lines.line("listen_disabled_num", 0);
    lines.line("threads", cores);
    lines.line("bytes", store.item_bytes);
    lines.line("curr_items", store.items);
    lines.line("total_items", store.stored);
    lines.line("memory_bytes", store.memory_bytes);
    lines.line("evictions", store.evicted_log + store.evicted_index);
    lines.line("evicted_log", store.evicted_log);
    lines.line("evicted_index", store.evicted_index);
    lines.line("evicted_unfetched", store.evicted_unfetched);
    lines.line("reclaimed", store.expired);
    lines.line("expired_unfetched", store.expired_unfetched);
    if let Some(tier) = tier {
        tier_lines(tier, &mut lines);
    }
    lines.end();
}

/// The names of memcached's extstore, where they mean the same.
fn tier_lines(tier: &TierStats, lines: &mut Lines<'_>) {
    lines.line("get_extstore", tier.hits);
    lines.line("miss_from_extstore", tier.lost);
    lines.line("badcrc_from_extstore", tier.corrupt);
    lines.line("recache_from_extstore", tier.recalled);
    lines.line("extstore_page_writes", tier.writes);
    lines.line("extstore_objects_evicted", tier.evicted);
    lines.line("extstore_objects_read", tier.reads);
    lines.line("extstore_objects_written", tier.stored);
    lines.line("extstore_objects_used", tier.items);
    lines.line("extstore_bytes_read", tier.read_bytes);
    lines.line("extstore_bytes_written", tier.write_bytes);
    lines.line("extstore_bytes_used", tier.bytes);
    lines.line("extstore_limit_maxbytes", tier.bytes_max);
    lines.line("extstore_memory_bytes", tier.memory_bytes);
    lines.line("extstore_objects_dropped", tier.dropped);
    lines.line("extstore_read_errors", tier.read_errors);
    lines.line("extstore_write_errors", tier.write_errors);
}

fn settings_lines<B: Backend>(settings: &Settings, backend: &B, out: &mut Vec<u8>) {
    let value_bytes_max = backend.with_store(|store| dunlin_store::Store::stats(store).value_bytes_max);
    let mut lines = Lines(out);
    lines.line("maxconns", settings.connections_max);
    for (at, listen) in settings.listens.iter().enumerate() {
        lines.line(format_args!("listen:{at}"), listen);
    }
    lines.line("udpport", 0);
    lines.line("cas_enabled", "yes");
    lines.line("binding_protocol", "ascii");
    lines.line("auth_enabled_sasl", "no");
    lines.line("auth_enabled_ascii", "no");
    lines.line("item_size_max", value_bytes_max);
    lines.line("maxconns_fast", "yes");
    lines.line("slab_reassign", "no");
    lines.line("lru_crawler", "no");
    lines.line("flush_enabled", "yes");
    lines.line("dump_enabled", "yes");
    lines.line("shutdown_command", "no");
    lines.line("detail_enabled", "no");
    lines.line("track_sizes", "no");
    lines.line("socket_look_us", settings.look.as_micros());
    lines.line("idle_timeout", settings.idle_seconds_max.unwrap_or(0));
    lines.end();
}

/// All items are of one class: there are no slabs.
fn items(totals: &Totals, out: &mut Vec<u8>) {
    let store = &totals.store;
    let mut lines = Lines(out);
    if store.items > 0 {
        lines.line("items:1:number", store.items);
        lines.line("items:1:mem_requested", store.item_bytes);
        lines.line("items:1:evicted", store.evicted_log + store.evicted_index);
        lines.line("items:1:evicted_nonzero", store.evicted_expiring);
        // The maximum over all cores: no core evicts another's items.
        lines.line("items:1:evicted_time", store.evicted_idle_seconds);
        lines.line("items:1:evicted_unfetched", store.evicted_unfetched);
        lines.line("items:1:outofmemory", totals.counts.get(Count::StoreNoMemory));
        lines.line("items:1:reclaimed", store.expired);
        lines.line("items:1:expired_unfetched", store.expired_unfetched);
    }
    lines.end();
}

fn slabs(totals: &Totals, out: &mut Vec<u8>) {
    let mut lines = Lines(out);
    lines.line("1:used_chunks", totals.store.items);
    lines.line("1:mem_requested", totals.store.item_bytes);
    lines.line("1:get_hits", totals.counts.get(Count::GetHits));
    lines.line("1:cmd_set", totals.counts.get(Count::CmdSet));
    lines.line("active_slabs", 1);
    lines.line("total_malloced", totals.store.memory_bytes);
    lines.end();
}

/// Reserves memory for the next part of a list: the cores' reports, and the answer built from them. Everything before
/// it is written first.
async fn begin_part<O: Output>(out: &mut Vec<u8>, client: &mut O) -> Result<(), O::Error> {
    client.write(out).await?;
    client.reserve(2 * LIST_PART_BYTES).await
}

/// Writes lines of all cores, up to the requested number.
async fn dump<B: Backend, O: Output>(
    backend: &B,
    items_max: u32,
    out: &mut Vec<u8>,
    client: &mut O,
) -> Result<(), O::Error> {
    let items_wanted = if items_max == 0 { usize::MAX } else { items_max as usize };
    let bytes_max = LIST_PART_BYTES / usize::from(backend.cores());
    let (mut items, mut bytes, mut first, mut count) = (0, 0, 0, dump::PART_RANGES_MAX);
    while first < dump::RANGES_MAX && items < items_wanted && bytes < dump::LIST_BYTES_MAX {
        begin_part(out, client).await?;
        let items_max = if items_max == 0 { 0 } else { items_max - items as u32 };
        let reports = backend.ask(Inquiry::Dump { first, count, bytes_max, items_max }).await;
        let lines = || reports.iter().flat_map(|report| report.dump.lines.split_inclusive(|&byte| byte == b'\n'));
        let is_rest = |rest| move |report: &Report| report.dump.rest == rest;
        if count > 1 && reports.iter().any(is_rest(DumpRest::Items)) && lines().count() < items_wanted - items {
            // There is room for fewer ranges at once.
            count /= 2;
            continue;
        }
        for line in lines().take(items_wanted - items) {
            if bytes >= dump::LIST_BYTES_MAX {
                break;
            }
            out.extend_from_slice(line);
            (items, bytes) = (items + 1, bytes + line.len());
        }
        if reports.iter().all(is_rest(DumpRest::Nothing)) {
            break;
        }
        first += count;
        count = (2 * count).min(dump::PART_RANGES_MAX);
    }
    out.extend_from_slice(b"END\r\n");
    Ok(())
}

/// Lists connections by core and number; memcached lists them by file descriptor.
async fn connections<B: Backend, O: Output>(
    backend: &B,
    settings: &Settings,
    out: &mut Vec<u8>,
    client: &mut O,
) -> Result<(), O::Error> {
    /// Upper bound on a report, or on the lines built from it.
    const CONNECTION_BYTES: usize = 512;
    let mut lines = Lines(out);
    for (at, listen) in settings.listens.iter().enumerate() {
        match listen {
            Listen::Tcp(address) => lines.line(format_args!("listen.{at}:addr"), format_args!("tcp:{address}")),
            Listen::Unix(_) => lines.line(format_args!("listen.{at}:addr"), listen),
        }
        lines.line(format_args!("listen.{at}:state"), "conn_listening");
    }
    let count = (LIST_PART_BYTES / CONNECTION_BYTES / usize::from(backend.cores())).max(1);
    let mut first = 0;
    loop {
        begin_part(out, client).await?;
        let reports = backend.ask(Inquiry::Connections { first, count }).await;
        for (core, report) in reports.iter().enumerate() {
            report.each.iter().for_each(|one| connection(core, one, out));
        }
        first += count;
        if reports.iter().all(|report| report.connection_places <= first) {
            out.extend_from_slice(b"END\r\n");
            return Ok(());
        }
    }
}

fn connection(core: usize, one: &ConnectionReport, out: &mut Vec<u8>) {
    let (number, mut lines) = (one.number, Lines(out));
    lines.line(format_args!("{core}.{number}:addr"), &one.peer);
    lines.line(format_args!("{core}.{number}:state"), one.activity.name());
    lines.line(format_args!("{core}.{number}:secs_since_last_cmd"), one.idle_seconds);
}
