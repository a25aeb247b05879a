//! The transactional part of the demo: a bank of three processes, one of which is killed while transfers run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::measure::Spread;
use dunlin_lab::peer::Peer;
use dunlin_lab::report::{Line, Metric, Places, Plot, RowBuilder};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, Timers};
use dunlin_serve::Interrupt;
use dunlin_txn::node::{Remote, RemoteConfig, Wanted};
use dunlin_txn::{Mode, Outcome, TxnError};

use super::bank_roles::{BankManager, BankNode};
use crate::{BenchError, Lab};

/// Steps in the progress bar.
pub(super) const STEPS: usize = 3;
/// Processes of the bank.
const NODES: u32 = 3;
/// When the cluster manager takes a process for failed.
const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);
/// Concurrent transfers, and the pause of each between two.
const TELLERS: u64 = 8;
const PAUSE: Duration = Duration::from_millis(2);
/// Accounts, and what each has at first.
const ACCOUNTS: u64 = 100;
const BALANCE: u64 = 1000;
const PARTITIONS: usize = 12;
/// Transfers before the kill.
const CALM: Duration = Duration::from_millis(500);
/// The plotted time before and after the kill, and its intervals.
const BEFORE: Duration = Duration::from_millis(250);
const AFTER: Duration = Duration::from_millis(1750);
const INTERVAL: Duration = Duration::from_millis(20);
/// Transfers after which service counts as restored: more than can have been in progress before.
const RESTORED: usize = 4 * TELLERS as usize;
/// Time limit of the processes, and of all waiting.
const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);
/// Lines of the journal that are read in one transaction.
const READ_AT_ONCE: usize = 500;

type Client = Remote<AnyTransport>;

fn failed(doing: &'static str, why: impl ToString) -> BenchError {
    BenchError::demo(doing, why.to_string())
}

/// Runs it.
pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.step("starting a bank of three processes");
    let mut manager: Peer<BankManager> = lab.anywhere(BankManager { failure_timeout: FAILURE_TIMEOUT }, LIMIT)?;
    let address = manager.ready()?;
    let mut nodes = Vec::new();
    for member in 1..=NODES {
        nodes.push(Some(lab.anywhere(BankNode { member, manager: address.clone() }, LIMIT)?));
    }
    let mut at = Vec::new();
    for node in nodes.iter_mut().flatten() {
        at.push(node.ready()?.parse()?);
    }
    let bank = Bank::open(at, lab.interrupt())?;
    bank.go_on(CALM)?;
    lab.step("killing one of its processes");
    let (before, killed_at) = (bank.acknowledged(), bank.timers.now());
    nodes[0].take().map_or(Ok(()), Peer::kill)?;
    bank.until("serve after a kill", || bank.acknowledged() >= before + RESTORED)?;
    let gap = bank.gap_since(before);
    bank.go_on(AFTER.saturating_sub(gap))?;
    lab.step("counting the money");
    let Count { sum, lost } = bank.close_and_count()?;
    let acknowledged = bank.acknowledged();
    let line = bank.line(killed_at, gap);
    drop(bank);
    nodes.into_iter().flatten().try_for_each(Peer::stop)?;
    manager.stop()?;
    if lost > 0 || sum != ACCOUNTS * BALANCE {
        let why = format!("{lost} acknowledged transfers are lost, and {sum} of {} is left", ACCOUNTS * BALANCE);
        return Err(failed("keep the money of a bank", why));
    }
    let case = format!("txn: no service after a kill, failure timeout {} ms", FAILURE_TIMEOUT.as_millis());
    lab.push(RowBuilder::new(case, Metric::LatencyMax, Spread::single(gap.as_nanos() as f64)));
    let case = format!("txn: acknowledged transfers that were lost, of {acknowledged}");
    lab.push(RowBuilder::new(case, Metric::Calls, Spread::single(lost as f64)));
    let case = format!("txn: money of {ACCOUNTS} accounts that is missing, of {}", ACCOUNTS * BALANCE);
    lab.push(RowBuilder::new(case, Metric::Calls, Spread::single((ACCOUNTS * BALANCE - sum) as f64)));
    lab.plot(Plot {
        title: format!("Acknowledged transfers around a kill of a process, {} ms from the left", BEFORE.as_millis()),
        unit: "transfers/s",
        lines: vec![line],
        places: Places::PageAndTerminal,
    });
    Ok(())
}

/// What the tellers share.
#[derive(Default)]
struct Books {
    /// When each acknowledgement came, by the clock of the endpoint.
    times: RefCell<Vec<u64>>,
    /// The acknowledged transfers.
    names: RefCell<Vec<String>>,
    working: Cell<u64>,
    is_over: Cell<bool>,
    failure: RefCell<Option<String>>,
}

struct Bank {
    endpoint: Rc<Endpoint<AnyTransport>>,
    timers: Timers,
    client: Client,
    books: Rc<Books>,
    interrupt: Interrupt,
}

/// What is left.
struct Count {
    sum: u64,
    lost: u64,
}

fn account(number: u64) -> Vec<u8> {
    format!("account/{number}").into_bytes()
}

fn balance(value: Option<&[u8]>) -> u64 {
    value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// One transfer, and its line in the journal.
async fn transfer(client: &Client, name: &str, from: u64, to: u64) -> Result<(), TxnError> {
    client
        .run(async |tx| {
            let (accounts, journal) = (client.client().table("accounts")?, client.client().table("journal")?);
            let (from, to) = (account(from), account(to));
            let values = tx.execute(&[(accounts, &from), (accounts, &to)], Mode::Update).await?;
            let (has, gets) = (balance(values[0].as_deref()), balance(values[1].as_deref()));
            if has > 0 {
                tx.put(accounts, &from, (has - 1).to_le_bytes().to_vec())?;
                tx.put(accounts, &to, (gets + 1).to_le_bytes().to_vec())?;
            }
            tx.insert(journal, name.as_bytes(), "done")
        })
        .await
}

/// Transfers until the end.
async fn tell(client: Client, timers: Timers, books: Rc<Books>, teller: u64) {
    for number in 0_u64.. {
        if books.is_over.get() {
            break;
        }
        let (name, from) = (format!("{teller}/{number}"), (teller * 17 + number * 31) % ACCOUNTS);
        let done = match transfer(&client, &name, from, (from + 1 + number % 9) % ACCOUNTS).await {
            Err(TxnError::InDoubt { transaction }) => match client.settle(transaction).await {
                Ok(Outcome::Committed) => Ok(()),
                // Not acknowledged.
                Ok(_) => continue,
                Err(error) => Err(error),
            },
            done => done,
        };
        match done {
            Ok(()) => {
                books.times.borrow_mut().push(timers.now());
                books.names.borrow_mut().push(name);
            }
            Err(error) => {
                *books.failure.borrow_mut() = Some(error.to_string());
                break;
            }
        }
        timers.sleep(PAUSE).await;
    }
    books.working.set(books.working.get() - 1);
}

impl Bank {
    fn open(at: Vec<Addr>, interrupt: &Interrupt) -> Result<Bank, BenchError> {
        let local = at.first().ok_or_else(|| failed("open a bank", "it has no processes"))?;
        let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(local)?, EndpointConfig::default())?);
        let (timers, config) = (endpoint.timers(), RemoteConfig { timeout: PATIENCE, ..RemoteConfig::default() });
        let opened = endpoint.block_on(async {
            let client = Remote::connect(&endpoint, at, config).await.map_err(|error| error.to_string())?;
            let deadline = timers.now() + PATIENCE.as_nanos() as u64;
            while client.configuration().nodes.len() < NODES as usize {
                if timers.now() > deadline {
                    return Err("its processes do not find each other".to_owned());
                }
                client.refresh().await;
                timers.sleep(Duration::from_millis(10)).await;
            }
            for name in ["accounts", "journal"] {
                let (replicas, partitions) = (Some(NODES as usize), Some(PARTITIONS));
                let wanted = Wanted { table: name.into(), replicas, partitions };
                client.create_table(wanted).await.map_err(|error| error.to_string())?;
            }
            let all = client.run(async |tx| {
                let accounts = client.client().table("accounts")?;
                (0..ACCOUNTS).try_for_each(|it| tx.put(accounts, &account(it), BALANCE.to_le_bytes().to_vec()))
            });
            all.await.map_err(|error| error.to_string())?;
            Ok(client)
        });
        let client = opened.map_err(|why| failed("open a bank", why))?;
        let books = Rc::new(Books::default());
        books.working.set(TELLERS);
        for teller in 0..TELLERS {
            endpoint.spawn(tell(client.clone(), timers.clone(), books.clone(), teller));
        }
        let bank = Bank { endpoint, timers, client, books, interrupt: interrupt.clone() };
        bank.until("transfer at all", || bank.acknowledged() >= RESTORED)?;
        Ok(bank)
    }

    fn acknowledged(&self) -> usize {
        self.books.times.borrow().len()
    }

    fn go_on(&self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        self.until("go on", || Instant::now() >= end)
    }

    /// Goes on until `is_so` holds.
    fn until(&self, doing: &'static str, mut is_so: impl FnMut() -> bool) -> Result<(), BenchError> {
        let end = Instant::now() + PATIENCE;
        let stops = || self.interrupt.is_set() || Instant::now() >= end || self.books.failure.borrow().is_some();
        let mut is_done = false;
        self.endpoint.run_until(|| {
            is_done = is_so();
            is_done || stops()
        });
        match self.books.failure.take() {
            Some(why) => Err(failed(doing, why)),
            None if self.interrupt.is_set() => Err(LabError::Interrupted.into()),
            None if is_done => Ok(()),
            None => Err(failed(doing, format!("not within {PATIENCE:?}"))),
        }
    }

    /// The longest time between two acknowledgements since so many.
    fn gap_since(&self, before: usize) -> Duration {
        let times = self.books.times.borrow();
        let around = &times[before.saturating_sub(1)..];
        Duration::from_nanos(around.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0))
    }

    /// Acknowledged transfers per second around a kill.
    fn line(&self, killed_at: u64, gap: Duration) -> Line {
        let (before, after, width) = (BEFORE.as_nanos() as u64, AFTER.as_nanos() as u64, INTERVAL.as_nanos() as u64);
        let from = killed_at.saturating_sub(before);
        let mut counts = vec![0_u32; ((before + after) / width) as usize];
        for time in self.books.times.borrow().iter().filter(|time| **time >= from) {
            if let Some(count) = counts.get_mut(((time - from) / width) as usize) {
                *count += 1;
            }
        }
        let point =
            |(at, count): (usize, u32)| ((at as u64 * width) as f64 / 1e6, f64::from(count) / INTERVAL.as_secs_f64());
        let points = counts.into_iter().enumerate().map(point).collect();
        Line { name: format!("a process is killed, {} ms without service", gap.as_millis()), points }
    }

    /// Ends the transfers, and reads back the journal and all accounts.
    fn close_and_count(&self) -> Result<Count, BenchError> {
        self.books.is_over.set(true);
        self.until("end the last transfers", || self.books.working.get() == 0)?;
        let (client, names) = (&self.client, self.books.names.borrow());
        let counted = self.endpoint.block_on(async {
            let mut lost = 0;
            for some in names.chunks(READ_AT_ONCE) {
                let found = client.run(async |tx| {
                    let journal = client.client().table("journal")?;
                    let keys: Vec<_> = some.iter().map(|name| (journal, name.as_bytes())).collect();
                    tx.execute(&keys, Mode::Read).await
                });
                lost += found.await?.iter().filter(|line| line.is_none()).count() as u64;
            }
            let balances = client.run(async |tx| {
                let accounts = client.client().table("accounts")?;
                let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
                let keys: Vec<_> = keys.iter().map(|key| (accounts, &key[..])).collect();
                tx.execute(&keys, Mode::Read).await
            });
            let sum = balances.await?.iter().map(|value| balance(value.as_deref())).sum();
            Ok::<_, TxnError>(Count { sum, lost })
        });
        counted.map_err(|why| failed("read a bank's books", why))
    }
}
