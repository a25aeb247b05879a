//! Takes a snapshot of several cores, from their meeting to a complete file.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::SaveError;
use super::file::Replacement;
use super::meeting::{Meeting, Outcome};
use super::origin::{Origin, PARTITIONS_MAX};
use super::sweep::{Copier, Effort, Piece, Step, kept_bytes_max};
use super::writer::{Totals, Writer};
use crate::moment::Moment;
use crate::shape::Shape;
use crate::sweep::Sweep;

/// Most blocks queued between the cores and the writing thread.
pub const BLOCKS_QUEUED_MAX: usize = 8;
/// How often the collector checks whether a core has given up, while nothing arrives.
const FAILURE_LOOK: Duration = Duration::from_millis(50);

/// Begins a snapshot of `cores` partitions, as of now, at `taken_at`. Returns a part for each core, in the order of the
/// snapshot, and the collector that writes them to a file. Items that expired by `taken_at` are left out. Times in the
/// file are wall-clock times.
///
/// # Panics
/// If there are no cores, or more than [`PARTITIONS_MAX`].
pub fn save(cores: usize, taken_at: impl Into<Moment>) -> (Vec<Part>, Collector) {
    let taken_at = taken_at.into();
    assert!((1..=PARTITIONS_MAX).contains(&cores), "a snapshot of something, within limits");
    let shapes = Mutex::new(vec![Shape::default(); cores]);
    let shared = Arc::new(Shared { meeting: Meeting::new(cores), failure: Mutex::new(None), shapes });
    let (output, pieces) = sync_channel(BLOCKS_QUEUED_MAX);
    let part = |core| Part {
        core,
        shared: shared.clone(),
        output: output.clone(),
        taken_at,
        pause: Duration::ZERO,
        attempts: 0,
        kept_bytes_max: kept_bytes_max(cores),
        stage: Stage::New,
    };
    ((0..cores).map(part).collect(), Collector { shared: shared.clone(), pieces, taken_at, cores, routing: [0; 16] })
}

/// State shared by the cores and the collector.
#[derive(Debug)]
struct Shared {
    meeting: Meeting,
    /// Why a core gave up.
    failure: Mutex<Option<SaveError>>,
    /// The shapes of the partitions; complete once the cores have met.
    shapes: Mutex<Vec<Shape>>,
}

impl Shared {
    /// The first failure is the cause of the others.
    fn fail(&self, why: SaveError) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.meeting.cancel();
    }

    /// Records the shape of a core's partition. Called before the core meets the others, so that all shapes are there
    /// when the first piece arrives.
    fn tell_shape(&self, core: usize, shape: Shape) {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)[core] = shape;
    }

    fn origin(&self, routing: [u8; 16]) -> Origin {
        Origin { routing, partitions: self.shapes.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    fn check(&self) -> Result<(), SaveError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// What a core has to do next for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Call [`Part::turn`] again after its next burst, without sleeping until then.
    Again,
    /// The disk is slow: call again in about a millisecond, and serve meanwhile.
    Wait,
    /// Nothing: its part is over.
    Over,
}

/// One core's part in a snapshot. The core calls [`Part::turn`] between bursts. Dropping a part before it is over ends
/// the snapshot for all.
#[derive(Debug)]
pub struct Part {
    core: usize,
    shared: Arc<Shared>,
    output: SyncSender<Piece>,
    taken_at: Moment,
    pause: Duration,
    attempts: u32,
    kept_bytes_max: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Meeting,
    Sweeping,
    Ending(Effort),
    Over,
}

impl Part {
    /// Does a little work: meets the others, or visits some items of the partition. Call it with the same partition
    /// each time.
    pub fn turn(&mut self, partition: &mut impl Sweep) -> Turn {
        match self.stage {
            Stage::New => {
                self.shared.meeting.know();
                self.stage = Stage::Meeting;
                self.meet(partition)
            }
            Stage::Meeting => self.meet(partition),
            Stage::Sweeping => self.sweep(partition),
            Stage::Ending(effort) => self.end(effort),
            Stage::Over => Turn::Over,
        }
    }

    fn meet(&mut self, partition: &mut impl Sweep) -> Turn {
        if self.shared.meeting.is_cancelled() {
            return self.fail(self.shared.meeting.why_cancelled(self.attempts));
        }
        if !self.shared.meeting.is_known() {
            return Turn::Again;
        }
        self.shared.tell_shape(self.core, partition.shape());
        let (outcome, pause) = self.shared.meeting.attend();
        self.pause = self.pause.max(pause);
        self.attempts += 1;
        match outcome {
            Outcome::Held => {
                let (output, kept) = (self.output.clone(), self.kept_bytes_max);
                let copier = Copier::new(partition, self.snapshot(), self.taken_at, output, self.pause, kept);
                // The copier of an earlier snapshot is still there if its core gave it up. Replacing the watch ends it.
                partition.watch(Box::new(copier));
                self.stage = Stage::Sweeping;
                Turn::Again
            }
            Outcome::Late => Turn::Again,
            Outcome::Cancelled => self.fail(self.shared.meeting.why_cancelled(self.attempts)),
        }
    }

    fn sweep(&mut self, partition: &mut impl Sweep) -> Turn {
        let Some(mut copier) = Copier::take(partition, self.snapshot()) else { return self.fail(SaveError::Abandoned) };
        let turn = match copier.step(partition) {
            Step::More => Turn::Again,
            Step::Full => Turn::Wait,
            Step::Complete => return self.end(copier.effort()),
            Step::Failed => return self.fail(copier.failure().unwrap_or(SaveError::Abandoned)),
        };
        partition.watch(copier);
        turn
    }

    /// Announces the end, as soon as the queue has room.
    fn end(&mut self, effort: Effort) -> Turn {
        if let Err(TrySendError::Full(_)) = self.output.try_send(Piece::End(effort)) {
            self.stage = Stage::Ending(effort);
            return Turn::Wait;
        }
        self.stage = Stage::Over;
        Turn::Over
    }

    /// Returns the identity of the snapshot among the unfinished ones of this process.
    fn snapshot(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    fn fail(&mut self, why: SaveError) -> Turn {
        self.shared.fail(why);
        self.stage = Stage::Over;
        Turn::Over
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.stage != Stage::Over {
            self.shared.fail(SaveError::Abandoned);
        }
    }
}

/// The result of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// The contents of the file.
    pub totals: Totals,
    /// From the first piece to the complete file.
    pub elapsed: Duration,
    /// Longest pause of a core for the common instant.
    pub pause: Duration,
    /// Ranges of hashes copied because they were about to change.
    pub copies: u64,
    /// Longest time that one operation waited for the disk.
    pub stall: Duration,
}

/// Ends a snapshot from another thread, when a core takes no part in it.
#[derive(Debug, Clone)]
pub struct Canceller(Arc<Shared>);

impl Canceller {
    /// Makes the collector return [`SaveError::Abandoned`] soon, unless the snapshot has failed already or is complete.
    pub fn cancel(&self) {
        self.0.fail(SaveError::Abandoned);
    }
}

/// Collects the parts of all cores in a file.
#[derive(Debug)]
pub struct Collector {
    shared: Arc<Shared>,
    pieces: Receiver<Piece>,
    taken_at: Moment,
    cores: usize,
    routing: [u8; 16],
}

impl Collector {
    /// Records in the snapshot how keys were divided among its partitions, as 16 opaque bytes: [`Origin::routing`].
    #[must_use]
    pub fn routed_by(self, routing: [u8; 16]) -> Collector {
        Collector { routing, ..self }
    }

    /// Returns a handle that can end this snapshot before it is complete.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.shared.clone())
    }

    /// Writes the file, which gets its name when it is complete and durable; until then it is `path` with the suffix
    /// `.tmp`. Blocks on the cores and the disk: call it on a separate thread.
    ///
    /// # Errors
    /// [`SaveError`]; an existing file of that name is unchanged.
    pub fn write_to(self, path: &Path) -> Result<Report, SaveError> {
        let begun = Instant::now();
        let mut file = Replacement::create(path)?;
        let mut report = Report::default();
        let totals = self.write(&mut file, &mut report)?;
        file.commit()?;
        Ok(Report { totals, elapsed: begun.elapsed(), ..report })
    }

    fn write(self, file: &mut Replacement, report: &mut Report) -> Result<Totals, SaveError> {
        let path = file.unfinished().to_owned();
        let io = |source| SaveError::Io { what: "write", path: path.clone(), source };
        let mut writer = Writer::new(file, self.taken_at.to_wall(self.taken_at.now)).map_err(io)?;
        let (mut ended, mut has_origin) = (0, false);
        while ended < self.cores {
            let piece = self.pieces.recv_timeout(FAILURE_LOOK);
            self.shared.check()?;
            if piece.is_ok() && !has_origin {
                // A piece has arrived, so the cores have met.
                writer.write_origin(&self.shared.origin(self.routing)).map_err(io)?;
                has_origin = true;
            }
            match piece {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(SaveError::Abandoned),
                Ok(Piece::Block(block)) => writer.write(&block).map_err(io)?,
                Ok(Piece::End(effort)) => {
                    ended += 1;
                    report.pause = report.pause.max(effort.pause);
                    report.stall = report.stall.max(effort.stall);
                    report.copies += effort.copies;
                }
            }
        }
        writer.finish().map(|(_, totals)| totals).map_err(io)
    }
}
