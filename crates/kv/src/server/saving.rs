//! Snapshots of a running server: one at a time, on a thread of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dunlin_serve::side;
use dunlin_store::snapshot::{Canceller, Report, SaveError, SnapshotLock, beside, save, sync_directory};
use tokio::sync::oneshot;

use super::clock::moment;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use crate::routing::Core;

/// Maximum number of rescue files kept. A server that fails repeatedly must not fill the disk.
const RESCUES_MAX: u32 = 8;
/// Suffix of the file that a rescue writes. It then gets another name. A rescue of all cores for which no name is free
/// stays there.
const UNNAMED: &str = ".rescue.part";
/// Suffix of what is written only to find a core whose items cannot be read.
const SCRATCH: &str = ".rescue.scratch";
/// Suffix of one more name, for rescues of all cores only. A later rescue of some cores cannot take it.
const LAST_NAME: &str = ".rescue.new";

/// Where and how snapshots are saved.
#[derive(Debug, Clone)]
pub(super) struct Saving {
    target: Option<Arc<Target>>,
    turns: Arc<Turns>,
    taking: Arc<Mutex<Taking>>,
    /// The seed that divides the keys, which is saved with them.
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

/// Where snapshots are saved, and the right to do so, held as long as any part of the server may save.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    _lock: SnapshotLock,
}

/// The snapshot being taken, and the cores that no longer take part.
#[derive(Debug, Default)]
struct Taking {
    running: Option<(Vec<Core>, Canceller)>,
    hung: Vec<Core>,
}

/// Renames a file.
type Rename = fn(&Path, &Path) -> io::Result<()>;

/// The file that a rescue writes, before it has its final name.
struct Unnamed {
    path: PathBuf,
    /// The system's, unless a test replaces it.
    rename: Rename,
}

/// Whether a thread is saving; only one may.
#[derive(Debug, Default)]
struct Turns {
    is_taken: Mutex<bool>,
    given_back: Condvar,
}

/// The right of one thread to save.
struct Turn(Arc<Turns>);

impl Turn {
    /// Takes the right, unless another thread has it.
    fn try_take(turns: &Arc<Turns>) -> Option<Turn> {
        let mut is_taken = turns.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        (!std::mem::replace(&mut *is_taken, true)).then(|| Turn(turns.clone()))
    }

    /// Waits until the right can be taken.
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

/// The result of a snapshot, when it is over.
pub(super) type Outcome = oneshot::Receiver<Result<Report, ServerError>>;

impl Saving {
    /// Saves to `path`, if there is one, and locks it against other servers.
    ///
    /// # Errors
    /// [`ServerError::Lock`].
    pub fn new(path: Option<&Path>, hang_max: Duration) -> Result<Saving, ServerError> {
        let lock = |path: &Path| SnapshotLock::take(path).map(|lock| Target { path: path.to_owned(), _lock: lock });
        let target = path.map(lock).transpose().map_err(ServerError::Lock)?;
        let (turns, taking) = Default::default();
        Ok(Saving { target: target.map(Arc::new), turns, taking, seed: [0; 16], hang_max })
    }

    /// Records the seed that divides the keys in each snapshot.
    #[must_use]
    pub fn routed_by(self, seed: [u8; 16]) -> Saving {
        Saving { seed, ..self }
    }

    /// Whether there is a file to save to.
    pub fn has_file(&self) -> bool {
        self.target.is_some()
    }

    /// Returns a saver of the cores with these mailboxes.
    pub fn of(&self, mailboxes: &Mailboxes) -> Saver {
        Saver { saving: self.clone(), mailboxes: mailboxes.clone() }
    }

    /// Gives up hung cores: a snapshot that waits for one of them ends, and [`Saver::save_after_failure`] leaves them
    /// out.
    pub fn give_up(&self, hung: &[Core]) {
        let mut taking = self.taking();
        taking.hung.extend(hung);
        if let Some((cores, canceller)) = &taking.running
            && cores.iter().any(|core| taking.hung.contains(core))
        {
            canceller.cancel();
        }
    }

    /// Returns the cores that were given up.
    fn hung(&self) -> Vec<Core> {
        self.taking().hung.clone()
    }

    fn taking(&self) -> MutexGuard<'_, Taking> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Saver {
    /// Begins a snapshot of all cores' present items. Its result comes through the channel.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Saving`], [`ServerError::Serve`].
    pub fn begin(&self) -> Result<Outcome, ServerError> {
        let target = self.saving.target.clone().ok_or(ServerError::NoSnapshot)?;
        let turn = Turn::try_take(&self.saving.turns).ok_or(ServerError::Saving)?;
        let saver = self.clone();
        let (done, end) = oneshot::channel();
        let work = move || {
            let result = saver.collect(&[], &target.path);
            // Before the result is sent: a server that saves its last snapshot then ends, and the last holder of the
            // lock removes its file.
            drop((turn, target, saver));
            // The caller may be gone.
            let _ = done.send(result);
        };
        side::start("snapshot", work)?;
        Ok(end)
    }

    /// Saves a last snapshot, after any that is being saved: that one misses what was stored since it began.
    ///
    /// # Errors
    /// [`ServerError::NoSnapshot`], [`ServerError::Save`].
    pub fn save_last(&self) -> Result<Report, ServerError> {
        let target = self.saving.target.as_ref().ok_or(ServerError::NoSnapshot)?;
        let _turn = Turn::take(&self.saving.turns);
        self.collect_last(&[], &target.path)
    }

    /// Saves what can be saved after cores failed. Returns what was saved, and where. Ends even if every hung core is
    /// given up meanwhile.
    ///
    /// A snapshot of all cores replaces the previous one, which is kept beside it unless that name is taken. A snapshot
    /// that lacks a core does not replace it. No named file of an earlier rescue is replaced: if there are many, only a
    /// snapshot of all cores is saved, and that one is never removed.
    pub fn save_after_failure(&self) -> String {
        self.rescue(|from, to| fs::rename(from, to))
    }

    fn rescue(&self, rename: Rename) -> String {
        let Some(target) = &self.saving.target else {
            return "nothing was saved: the server has no snapshot file".into();
        };
        let _turn = Turn::take(&self.saving.turns);
        let unnamed = Unnamed { path: beside(&target.path, UNNAMED), rename };
        self.rescue_to(target, &unnamed)
            .unwrap_or_else(|why| format!("nothing was saved{why}, and {} is as it was before", target.path.display()))
    }

    /// Saves what can be saved, by way of a file that has no name yet. Says what was saved, or why nothing was: then
    /// that file is as it was before, maybe the rescue of an earlier failure.
    fn rescue_to(&self, target: &Target, unnamed: &Unnamed) -> Result<String, String> {
        let path = target.path.display();
        let mut missing = self.saving.hung();
        loop {
            if !missing.is_empty() {
                free_rescue(&target.path)?;
            }
            match self.collect_last(&missing, &unnamed.path) {
                Ok(report) if missing.is_empty() => return Ok(take_over(target, unnamed, &report)),
                Ok(report) => {
                    let (rescue, note) = unnamed.keep(free_rescue(&target.path));
                    return Ok(format!(
                        "core {} cannot be read: the {} items of the others were saved to {}, which `dunlin kv dump` reads{note}; \
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
                    let unreadable = self.first_unreadable(&missing, &beside(&target.path, SCRATCH));
                    missing.push(unreadable.ok_or_else(String::new)?);
                }
                Err(error) => {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    return Err(format!(" ({why})"));
                }
            }
        }
    }

    /// Finds a core whose items cannot be read, by saving the items of each core alone.
    fn first_unreadable(&self, known: &[Core], scratch: &Path) -> Option<Core> {
        let all: Vec<Core> = (0..self.mailboxes.len()).collect();
        let mut rest = all.iter().copied().filter(|core| !known.contains(core));
        let others = |core: Core| all.iter().copied().filter(|other| *other != core).collect::<Vec<_>>();
        let unreadable = rest.find(|core| self.collect(&others(*core), scratch).is_err());
        let _ = fs::remove_file(scratch);
        unreadable
    }

    /// The same for a server that ends: cores that were all late for each other are asked again.
    fn collect_last(&self, missing: &[Core], path: &Path) -> Result<Report, ServerError> {
        until_met(self.saving.hang_max, || self.collect(missing, path))
    }

    /// Saves the present items of all cores except the missing ones.
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
        // If a core does not take its part, dropping the part ends the snapshot, which the collector notices.
        let _ = self.mailboxes.send_each_within(self.saving.hang_max, letters);
        let result = collector.routed_by(self.saving.seed).write_to(path);
        self.saving.taking().running = None;
        result.map_err(ServerError::from)
    }
}

/// Gives a rescued snapshot of all cores the name of the snapshot, or another name. If that fails, it stays where it
/// is. Returns where it is.
fn take_over(target: &Target, unnamed: &Unnamed, report: &Report) -> String {
    let (items, path, before) = (report.totals.records, target.path.display(), beside(&target.path, ".before"));
    // A hard link, so that there is a snapshot at every moment.
    let kept = match fs::hard_link(&target.path, &before) {
        Ok(()) => format!("; what it held before is in {}", before.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        // A server that fails repeatedly must not replace the last good snapshot.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let (rescue, note) = unnamed.keep(name_for_all(&target.path));
            let (rescue, before) = (rescue.display(), before.display());
            return format!(
                "all {items} items were saved to {rescue}{note}; {path} is as it was before, because {before} of an earlier failure \
                 exists: move that away, and then {rescue} to {path}"
            );
        }
        Err(error) => {
            let (rescue, note) = unnamed.keep(name_for_all(&target.path));
            return format!(
                "all {items} items were saved to {}{note}; {path} is as it was before ({error})",
                rescue.display()
            );
        }
    };
    match (unnamed.rename)(&unnamed.path, &target.path) {
        Ok(()) => format!("all {items} items were saved to {path}{}{kept}", doubt(&target.path)),
        Err(error) => {
            let (rescue, note) = unnamed.keep(name_for_all(&target.path));
            format!("all {items} items were saved to {}{note} ({error}){kept}", rescue.display())
        }
    }
}

impl Unnamed {
    /// Gives a rescue its name, or leaves it where it is. Returns where it is, and a remark about that.
    fn keep(&self, name: Result<PathBuf, String>) -> (PathBuf, String) {
        let named = name.and_then(|name| match (self.rename)(&self.path, &name) {
            Ok(()) => Ok((doubt(&name), name)),
            Err(error) => Err(format!(" ({error})")),
        });
        match named {
            Ok((doubt, name)) => (name, doubt),
            Err(why) => {
                (self.path.clone(), format!(", which the next failure replaces, for want of another name{why}"))
            }
        }
    }
}

/// Returns a name for a rescue of all cores.
fn name_for_all(path: &Path) -> Result<PathBuf, String> {
    let last = beside(path, LAST_NAME);
    free_rescue(path).or_else(|why| if is_free(&last) { Ok(last) } else { Err(why) })
}

/// Flushes the name of a file to the disk. Returns a remark if that fails.
fn doubt(path: &Path) -> String {
    let failed = |error| format!(", which may not be on the disk ({error})");
    sync_directory(path).map_or_else(failed, |()| String::new())
}

/// Whether no file has this name. A name that cannot be examined may be in use.
fn is_free(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the first free name for a rescue: `FILE.rescue`, or with a number appended. The error says what to do if all
/// are taken.
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

/// Repeats a snapshot for so long while cores do not meet for it. On a machine whose processors are busy with others,
/// that takes more attempts than one snapshot makes, and the last one has no other chance.
fn until_met<R>(time: Duration, mut take: impl FnMut() -> Result<R, ServerError>) -> Result<R, ServerError> {
    let begun = Instant::now();
    loop {
        match take() {
            Err(ServerError::Save(SaveError::NoMeeting)) if begun.elapsed() < time => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use dunlin_store::snapshot::{Part, Turn as PartTurn};
    use dunlin_store::{Model, Put, Store as _};

    use super::*;

    #[test]
    fn a_last_snapshot_is_repeated_until_its_cores_meet() {
        let mut late = 25;
        let result = until_met(Duration::from_secs(600), || {
            late -= 1;
            if late > 0 { Err(SaveError::NoMeeting.into()) } else { Ok(late) }
        });
        assert_eq!(result.unwrap(), 0);
        let (mut takes, other) = (0, || SaveError::Abandoned.into());
        assert!(until_met::<()>(Duration::from_secs(600), || Err(other())).is_err(), "nothing else is repeated");
        let result = until_met::<()>(Duration::ZERO, || {
            takes += 1;
            Err(SaveError::NoMeeting.into())
        });
        assert_eq!((result.is_err(), takes), (true, 1), "and it ends");
    }

    fn take_part(mut part: Part, store: &mut Model) {
        while part.turn(store) != PartTurn::Over {
            thread::yield_now();
        }
    }

    /// Rescues the readable cores of two when no file can be renamed. Returns the remarks, and where the file is.
    fn rescue_without_names(test: &str, hung: &[Core]) -> (String, PathBuf) {
        let file = std::env::temp_dir().join(format!("dunlin-kv-{test}-{}", std::process::id()));
        let (mailboxes, receivers) = dunlin_serve::mailbox::mailboxes(2, 8);
        let saving = Saving::new(Some(&file), Duration::from_secs(10)).unwrap();
        saving.give_up(hung);
        let saver = saving.of(&mailboxes);
        let rescue = thread::spawn(move || saver.rescue(|_, _| Err(io::Error::other("no name today"))));
        for (mut receiver, core) in receivers.into_iter().zip(0..) {
            if hung.contains(&core) {
                continue;
            }
            let mut store = Model::new();
            let key = store.key(b"key").unwrap();
            store.put(&key, b"1", Put::default()).unwrap();
            match receiver.letter_blocking() {
                // Each waits for the others.
                Some(Mail::Snapshot(part)) => drop(thread::spawn(move || take_part(part, &mut store))),
                other => panic!("{other:?}"),
            }
        }
        (rescue.join().unwrap(), beside(&file, UNNAMED))
    }

    #[test]
    fn a_rescue_that_gets_no_name_stays_where_it_is_and_says_so() {
        for (test, hung, items) in [("part-unnamed", &[1][..], "the 1 items"), ("all-unnamed", &[], "all 2 items")] {
            let (told, unnamed) = rescue_without_names(test, hung);
            assert!(fs::metadata(&unnamed).is_ok_and(|file| file.len() > 0), "{told}");
            assert!(told.contains(items) && told.contains("no name today"), "{told}");
            assert!(told.contains(&unnamed.display().to_string()), "{told}");
            fs::remove_file(&unnamed).unwrap();
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
        // A mere request is rejected.
        let _again = saver.begin().unwrap();
        assert!(matches!(saver.begin(), Err(ServerError::Saving)));
        drop(part());
        fs::remove_file(&file).unwrap();
    }
}
