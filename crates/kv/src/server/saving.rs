//! Snapshots of a running server: one at a time, on a thread of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunlin_serve::side;
use dunlin_store::snapshot::{Canceller, Report, SaveError, SnapshotLock, beside, save, sync_directory};
use tokio::sync::oneshot;

use super::clock::moment;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use crate::routing::Core;

/// Files of rescues that are kept. A server that fails again and again must not fill the disk.
const RESCUES_MAX: u32 = 8;
/// Suffix of the file that a rescue writes. Once its contents are known, it gets another name or is removed; a rescue of all cores for which no
/// name is free stays.
const UNNAMED: &str = ".rescue.part";
/// Suffix of one more name, for rescues of all cores only. A later rescue of some cores cannot take it.
const LAST_NAME: &str = ".rescue.new";

/// Where and how snapshots are saved.
#[derive(Debug, Clone)]
pub(super) struct Saving {
    target: Option<Arc<Target>>,
    turns: Arc<Turns>,
    taking: Arc<Mutex<Taking>>,
    /// What keys are divided by, which is kept with them.
    seed: [u8; 16],
    /// How long a core has to take a letter.
    hang_max: Duration,
}

/// Saves snapshots of the cores that have these mailboxes.
#[derive(Debug, Clone)]
pub(super) struct Saver {
    saving: Saving,
    mailboxes: Mailboxes,
}

/// Where snapshots are saved, and the right to do so, for as long as anything of the server may.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    _lock: SnapshotLock,
}

/// The snapshot that is being taken, and the cores that take no part any more.
#[derive(Debug, Default)]
struct Taking {
    running: Option<(Vec<Core>, Canceller)>,
    hung: Vec<Core>,
}

/// Whether a thread saves; one may.
#[derive(Debug, Default)]
struct Turns {
    is_taken: Mutex<bool>,
    given_back: Condvar,
}

/// The right of a thread to save; there is one.
struct Turn(Arc<Turns>);

impl Turn {
    /// Takes it, unless another thread has it.
    fn try_take(turns: &Arc<Turns>) -> Option<Turn> {
        let mut is_taken = turns.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        (!std::mem::replace(&mut *is_taken, true)).then(|| Turn(turns.clone()))
    }

    /// Waits until it can be taken.
    fn take(turns: &Arc<Turns>) -> Turn {
        let is_taken = turns.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = turns.given_back.wait_while(is_taken, |is_taken| *is_taken);
        *waited.unwrap_or_else(PoisonError::into_inner) = true;
        Turn(turns.clone())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.given_back.notify_one();
    }
}

/// What comes of a snapshot, when it is over.
pub(super) type Outcome = oneshot::Receiver<Result<Report, ServerError>>;

impl Saving {
    /// Saves to `path`, if there is one, and keeps other servers from it.
    ///
    /// # Errors
    /// [`ServerError::Lock`].
    pub fn new(path: Option<&Path>, hang_max: Duration) -> Result<Saving, ServerError> {
        let lock = |path: &Path| SnapshotLock::take(path).map(|lock| Target { path: path.to_owned(), _lock: lock });
        let target = path.map(lock).transpose().map_err(ServerError::Lock)?;
        let (turns, taking) = Default::default();
        Ok(Saving { target: target.map(Arc::new), turns, taking, seed: [0; 16], hang_max })
    }

    /// Keeps the seed that keys are divided by with each snapshot.
    #[must_use]
    pub fn routed_by(self, seed: [u8; 16]) -> Saving {
        Saving { seed, ..self }
    }

    /// Whether there is a file to save to.
    pub fn has_file(&self) -> bool {
        self.target.is_some()
    }

    /// Saves what the cores with these mailboxes have.
    pub fn of(&self, mailboxes: &Mailboxes) -> Saver {
        Saver { saving: self.clone(), mailboxes: mailboxes.clone() }
    }

    /// Gives up cores that hang: a snapshot that waits for one of them ends, and [`Saver::save_after_failure`] leaves them out.
    pub fn give_up(&self, hung: &[Core]) {
        let mut taking = self.taking();
        taking.hung.extend(hung);
        if let Some((cores, canceller)) = &taking.running
            && cores.iter().any(|core| taking.hung.contains(core))
        {
            canceller.cancel();
        }
    }

    /// The cores that were given up.
    fn hung(&self) -> Vec<Core> {
        self.taking().hung.clone()
    }

    fn taking(&self) -> MutexGuard<'_, Taking> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Saver {
    /// Begins a snapshot of what all cores have now. Its end comes through the channel.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::System`].
    pub fn begin(&self) -> Result<Outcome, ServerError> {
        let target = self.saving.target.clone().ok_or(ServerError::NoSnapshot)?;
        let turn = Turn::try_take(&self.saving.turns).ok_or(ServerError::Saving)?;
        let saver = self.clone();
        let (done, end) = oneshot::channel();
        let work = move || {
            let result = saver.collect(&[], &target.path);
            // Before anybody hears of the end: a server that saves its last snapshot ends then, and the last who has the lock takes its file away.
            drop((turn, target, saver));
            // Whoever asked may have gone away.
            let _ = done.send(result);
        };
        side::start("snapshot", work)?;
        Ok(end)
    }

    /// Saves a last snapshot, after one that is being saved: that one misses what was stored since it began.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Save`].
    pub fn save_last(&self) -> Result<Report, ServerError> {
        let target = self.saving.target.as_ref().ok_or(ServerError::NoSnapshot)?;
        let _turn = Turn::take(&self.saving.turns);
        self.collect(&[], &target.path)
    }

    /// Saves what can be saved after cores failed. Says what was saved, and where. It ends if every core that hangs is given up meanwhile.
    ///
    /// A snapshot of all cores takes the place of the one before, which is kept beside it, unless something is kept there already. One that
    /// lacks a core does not. No named file of an earlier rescue is replaced: if there are many, only a snapshot of all cores is saved. That one
    /// is never removed.
    pub fn save_after_failure(&self) -> String {
        let Some(target) = &self.saving.target else { return "nothing was saved: the server has no snapshot file".into() };
        let _turn = Turn::take(&self.saving.turns);
        let unnamed = beside(&target.path, UNNAMED);
        let told = self.rescue_to(target, &unnamed);
        if told.is_err() {
            // What was written there, to find a core whose items can be read, is not all that can.
            let _ = fs::remove_file(&unnamed);
        }
        told.unwrap_or_else(|why| format!("nothing was saved{why}, and {} is as it was before", target.path.display()))
    }

    /// Saves what can be saved, by way of a file that has no name yet. Says what was saved, or why nothing was.
    fn rescue_to(&self, target: &Target, unnamed: &Path) -> Result<String, String> {
        let path = target.path.display();
        let mut missing = self.saving.hung();
        loop {
            if !missing.is_empty() {
                free_rescue(&target.path)?;
            }
            match self.collect(&missing, unnamed) {
                Ok(report) if missing.is_empty() => return Ok(take_over(target, unnamed, &report)),
                Ok(report) => {
                    let (rescue, doubt) =
                        give_name(unnamed, free_rescue(&target.path)?).map_err(|error| format!(" ({error})"))?;
                    return Ok(format!(
                        "core {} cannot be read: the {} items of the others were saved to {}, which `dunlin kv dump` reads{doubt}; \
                         {path} is as it was before",
                        missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                        report.totals.records,
                        rescue.display(),
                    ));
                }
                Err(ServerError::Save(SaveError::Abandoned)) if missing.len() < usize::from(self.mailboxes.len()) => {
                    let hung = self.saving.hung();
                    if hung.iter().any(|core| !missing.contains(core)) {
                        missing.retain(|core| !hung.contains(core));
                        missing.extend(hung);
                        continue;
                    }
                    // Whoever gave it up has failed meanwhile, or again.
                    missing.push(self.first_unreadable(&missing, unnamed).ok_or_else(String::new)?);
                }
                Err(error) => {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    return Err(format!(" ({why})"));
                }
            }
        }
    }

    /// Finds a core whose items cannot be read, by saving those of each alone.
    fn first_unreadable(&self, known: &[Core], scratch: &Path) -> Option<Core> {
        let all: Vec<Core> = (0..self.mailboxes.len()).collect();
        let mut rest = all.iter().copied().filter(|core| !known.contains(core));
        let others = |core: Core| all.iter().copied().filter(|other| *other != core).collect::<Vec<_>>();
        rest.find(|core| self.collect(&others(*core), scratch).is_err())
    }

    /// Saves what all cores have now but those that are missing.
    fn collect(&self, missing: &[Core], path: &Path) -> Result<Report, ServerError> {
        let cores: Vec<Core> = (0..self.mailboxes.len()).filter(|core| !missing.contains(core)).collect();
        let (parts, collector) = save(cores.len().max(1), moment());
        {
            let mut taking = self.saving.taking();
            if cores.iter().any(|core| taking.hung.contains(core)) {
                return Err(SaveError::Abandoned.into());
            }
            taking.running = Some((cores.clone(), collector.canceller()));
        }
        let letters = cores.into_iter().zip(parts.into_iter().map(Mail::Snapshot));
        // A part that a core does not take is dropped and ends the snapshot, as the collector finds out.
        let _ = self.mailboxes.send_each_within(self.saving.hang_max, letters);
        let result = collector.routed_by(self.saving.seed).write_to(path);
        self.saving.taking().running = None;
        result.map_err(ServerError::from)
    }
}

/// Gives a rescued snapshot of all cores the name of the snapshot, or another name. If it gets none, it stays where it is. Says where it is.
fn take_over(target: &Target, unnamed: &Path, report: &Report) -> String {
    let (items, path, before) = (report.totals.records, target.path.display(), beside(&target.path, ".before"));
    // A link: at no moment there is no snapshot.
    let kept = match fs::hard_link(&target.path, &before) {
        Ok(()) => format!("; what it held before is in {}", before.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        // A server that fails again and again must not replace the last good snapshot.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let (rescue, note) = keep(unnamed, &target.path);
            let (rescue, before) = (rescue.display(), before.display());
            return format!(
                "all {items} items were saved to {rescue}{note}; {path} is as it was before, because {before} of an earlier failure \
                 exists: move that away, and then {rescue} to {path}"
            );
        }
        Err(error) => {
            let (rescue, note) = keep(unnamed, &target.path);
            return format!(
                "all {items} items were saved to {}{note}; {path} is as it was before ({error})",
                rescue.display()
            );
        }
    };
    match fs::rename(unnamed, &target.path) {
        Ok(()) => format!("all {items} items were saved to {path}{}{kept}", doubt(&target.path)),
        Err(error) => {
            let (rescue, note) = keep(unnamed, &target.path);
            format!("all {items} items were saved to {}{note} ({error}){kept}", rescue.display())
        }
    }
}

/// Gives a rescue of all cores a name to keep, or leaves it where it is. Returns where it is, and what is to be known of that.
fn keep(unnamed: &Path, path: &Path) -> (PathBuf, String) {
    let last = beside(path, LAST_NAME);
    let name = free_rescue(path).or_else(|why| if is_free(&last) { Ok(last) } else { Err(why) });
    let named = name.and_then(|name| give_name(unnamed, name).map_err(|error| format!(" ({error})")));
    named.unwrap_or_else(|why| {
        (unnamed.to_owned(), format!(", which the next failure replaces, for want of another name{why}"))
    })
}

/// Renames a rescue. Returns its name, and whether that may not be on the disk.
fn give_name(unnamed: &Path, name: PathBuf) -> io::Result<(PathBuf, String)> {
    fs::rename(unnamed, &name)?;
    let doubt = doubt(&name);
    Ok((name, doubt))
}

/// Brings the name of a file to the disk. Says so if that fails.
fn doubt(path: &Path) -> String {
    let failed = |error| format!(", which may not be on the disk ({error})");
    sync_directory(path).map_or_else(failed, |()| String::new())
}

/// Whether no file has this name. A name that cannot be looked at may be somebody's.
fn is_free(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The first name for a rescue that no file has: `FILE.rescue`, or with a number behind. Says what to do if all are taken.
fn free_rescue(path: &Path) -> Result<PathBuf, String> {
    let name = |number| if number == 0 { ".rescue".into() } else { format!(".rescue.{number}") };
    (0..RESCUES_MAX).map(|number| beside(path, &name(number))).find(|path| is_free(path)).ok_or_else(|| {
        let (path, last) = (path.display(), RESCUES_MAX - 1);
        format!(
            " (there are {RESCUES_MAX} files of earlier failures, {path}.rescue to {path}.rescue.{last}: read them with `dunlin kv dump`, \
             and remove or move away those that are not needed)"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use dunlin_store::snapshot::{Part, Turn as PartTurn};
    use dunlin_store::{Model, Put, Store as _};

    use super::*;

    fn take_part(mut part: Part, store: &mut Model) {
        while part.turn(store) != PartTurn::Over {
            thread::yield_now();
        }
    }

    #[test]
    fn the_last_snapshot_waits_for_one_that_is_being_saved() {
        let file = std::env::temp_dir().join(format!("dunlin-kv-last-{}", std::process::id()));
        let (mailboxes, mut receivers) = dunlin_serve::mailbox::mailboxes(1, 8);
        let saver = Saving::new(Some(&file), Duration::from_secs(10)).unwrap().of(&mailboxes);
        let mut store = Model::new();
        let mut part = || match receivers[0].letter_blocking() {
            Some(Mail::Snapshot(part)) => part,
            other => panic!("{other:?}"),
        };
        let first = saver.begin().unwrap();
        let first_part = part();
        // The server ends now, in the middle of it.
        let last = thread::spawn({
            let saver = saver.clone();
            move || saver.save_last()
        });
        take_part(first_part, &mut store);
        let key = store.key(b"stored since it began").unwrap();
        store.put(&key, b"1", Put::default()).unwrap();
        assert_eq!(first.blocking_recv().unwrap().unwrap().totals.records, 0);
        take_part(part(), &mut store);
        assert_eq!(last.join().unwrap().unwrap().totals.records, 1);
        // Whoever only asks is told.
        let _again = saver.begin().unwrap();
        assert!(matches!(saver.begin(), Err(ServerError::Saving)));
        drop(part());
        fs::remove_file(&file).unwrap();
    }
}
