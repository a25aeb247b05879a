//! Tasks of one thread (FaSST's coroutines, with the compiler doing the work).
//!
//! Ready tasks are in a queue that any thread may push to, since a waker is `Send`; the event loop runs them. Waking a
//! task costs an uncontended lock; spawning allocates the task and its waker once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A spawned future.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The number of the future that `block_on` polls itself; it is never in the queue.
const ROOT: u32 = u32::MAX;

/// Wakes an endpoint's thread if it sleeps in its transport; costs a load if it does not.
pub(crate) struct Notifier {
    sleeping: AtomicBool,
    transport: dunlin_net::Waker,
}

impl Notifier {
    /// Call this after the work was made visible.
    pub fn notify(&self) {
        if self.sleeping.load(SeqCst) {
            self.transport.wake();
        }
    }

    /// The same from the endpoint's own thread, which is awake, but in a foreign event loop that may sleep next.
    #[inline]
    pub fn notify_here(&self) {
        if self.sleeping.load(Relaxed) {
            self.notify_once();
        }
    }

    #[cold]
    fn notify_once(&self) {
        if self.sleeping.swap(false, SeqCst) {
            self.transport.wake();
        }
    }
}

struct ReadyQueue {
    ready: Mutex<VecDeque<u32>>,
    /// Whether the queue may contain anything. An iteration of the loop that finds nothing then costs one load: taking
    /// the lock would wait until the packets just sent have left the store buffer, a third of a small call's time.
    any: AtomicBool,
    notifier: Arc<Notifier>,
    /// [`thread_token`] of the thread that runs the tasks.
    thread: usize,
}

/// A number that no two living threads share.
#[inline]
fn thread_token() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl ReadyQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        // The queue of numbers is valid, whatever panicked meanwhile.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    queue: Arc<ReadyQueue>,
    task: u32,
    /// Whether it is in the queue already.
    queued: AtomicBool,
    /// For the root: the same, if it was woken by its own thread, the only one that reads this. Needs no ordering,
    /// which would wait for the store buffer.
    queued_here: AtomicBool,
}

impl TaskWaker {
    fn new(queue: &Arc<ReadyQueue>, task: u32) -> Arc<TaskWaker> {
        let (queued, queued_here) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(TaskWaker { queue: queue.clone(), task, queued, queued_here })
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Almost every wake-up comes from the endpoint's own thread, which is awake and needs no ordering with itself.
        let is_own_thread = thread_token() == self.queue.thread;
        if is_own_thread && self.task == ROOT {
            return self.queued_here.store(true, Relaxed);
        }
        if is_own_thread {
            if self.queued.load(Relaxed) {
                return;
            }
            self.queued.store(true, Relaxed);
        } else if self.queued.swap(true, SeqCst) {
            return self.queue.notifier.notify();
        }
        if self.task != ROOT {
            self.queue.lock().push_back(self.task);
            self.queue.any.store(true, Release);
        }
        if is_own_thread {
            self.queue.notifier.notify_here();
        } else {
            fence(SeqCst);
            self.queue.notifier.notify();
        }
    }
}

struct Slot {
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

/// Makes tasks that were not run, because one before them panicked, run in the next iteration.
struct Rest<'a>(&'a Executor);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if !self.0.batch.borrow().is_empty() {
            self.0.queue.any.store(true, Release);
        }
    }
}

/// A task that is being polled. Unless it is put back, it has ended, normally or by a panic.
struct Running<'a> {
    executor: &'a Executor,
    index: u32,
    task: Option<Task>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.executor.free_place(self.index);
        // Last: dropping what it owns may call back into this code.
        self.task = None;
    }
}

/// The tasks of an endpoint.
pub(crate) struct Executor {
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<u32>>,
    queue: Arc<ReadyQueue>,
    root: Arc<TaskWaker>,
    root_waker: Waker,
    /// Tasks taken from the ready queue and not run yet: between iterations there are some only if a task panicked.
    batch: RefCell<VecDeque<u32>>,
    live: Cell<usize>,
}

impl Executor {
    pub fn new(transport: dunlin_net::Waker) -> Executor {
        let notifier = Arc::new(Notifier { sleeping: AtomicBool::new(false), transport });
        let queue = Arc::new(ReadyQueue {
            ready: Mutex::new(VecDeque::new()),
            any: AtomicBool::new(false),
            notifier,
            thread: thread_token(),
        });
        let root = TaskWaker::new(&queue, ROOT);
        let batch = RefCell::new(VecDeque::new());
        Executor {
            slots: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            queue,
            root_waker: root.clone().into(),
            root,
            batch,
            live: Cell::new(0),
        }
    }

    /// Live tasks.
    pub fn len(&self) -> usize {
        self.live.get()
    }

    /// Adds a task; it runs in the next iteration of the loop.
    pub fn spawn(&self, task: Task) {
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(None);
            slots.len() as u32 - 1
        });
        let waker = TaskWaker::new(&self.queue, index);
        slots[index as usize] = Some(Slot { task: Some(task), waker: waker.clone() });
        self.live.set(self.live.get() + 1);
        drop(slots);
        waker.wake();
    }

    /// Whether a task may be ready.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.queue.any.load(Acquire)
    }

    /// Polls every task that is ready now, once. Returns how many there were.
    pub fn run_ready(&self) -> usize {
        if !self.has_ready() {
            return 0;
        }
        self.queue.any.store(false, SeqCst);
        let _rest = Rest(self);
        self.batch.borrow_mut().append(&mut self.queue.lock());
        let ready = self.batch.borrow().len();
        for _ in 0..ready {
            let next = self.batch.borrow_mut().pop_front();
            if let Some(index) = next {
                self.run(index);
            }
        }
        ready
    }

    fn run(&self, index: u32) {
        let taken = {
            let mut slots = self.slots.borrow_mut();
            slots.get_mut(index as usize).and_then(Option::as_mut).and_then(|s| Some((s.task.take()?, s.waker.clone())))
        };
        let Some((task, waker)) = taken else { return };
        waker.queued.store(false, SeqCst);
        let mut running = Running { executor: self, index, task: Some(task) };
        if let Some(task) = &mut running.task
            && task.as_mut().poll(&mut Context::from_waker(&waker.clone().into())).is_pending()
        {
            let task = running.task.take();
            if let Some(Some(slot)) = self.slots.borrow_mut().get_mut(index as usize) {
                slot.task = task;
            }
            std::mem::forget(running);
        }
    }

    /// Frees the entry of a task that has ended.
    fn free_place(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        if slots.get_mut(index as usize).and_then(Option::take).is_some() {
            self.free.borrow_mut().push(index);
            self.live.set(self.live.get() - 1);
        }
    }

    /// Whether a waker belongs to the root future: [`Executor::wake_root`] is cheaper.
    #[inline]
    pub fn is_root(&self, waker: &Waker) -> bool {
        waker.will_wake(&self.root_waker)
    }

    /// Wakes the root future, from this thread.
    #[inline]
    pub fn wake_root(&self) {
        self.root.queued_here.store(true, Relaxed);
    }

    /// Whether to poll the root future: it was woken, or never polled.
    #[inline]
    pub fn is_root_due(&self, first: bool) -> bool {
        first || self.root.queued_here.load(Relaxed) || self.root.queued.load(Acquire)
    }

    /// Polls the root future.
    #[inline]
    pub fn poll_root<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        self.root.queued_here.store(false, Relaxed);
        if self.root.queued.load(Acquire) {
            self.root.queued.store(false, SeqCst);
        }
        future.poll(&mut Context::from_waker(&self.root_waker))
    }

    fn is_root_woken(&self) -> bool {
        self.root.queued_here.load(Relaxed) || self.root.queued.load(SeqCst)
    }

    /// With which other threads wake this one.
    pub fn notifier(&self) -> Arc<Notifier> {
        self.queue.notifier.clone()
    }

    /// Begins a sleep, unless a task is ready or `work_waits` finds something; returns whether it began. Code that
    /// makes work after this check sees that the thread sleeps, and wakes it.
    pub fn begin_sleep(&self, work_waits: impl FnOnce() -> bool) -> bool {
        self.queue.notifier.sleeping.store(true, SeqCst);
        fence(SeqCst);
        let may_sleep = self.queue.lock().is_empty() && !self.is_root_woken() && !work_waits();
        if !may_sleep {
            self.end_sleep();
        }
        may_sleep
    }

    /// Ends a sleep.
    pub fn end_sleep(&self) {
        self.queue.notifier.sleeping.store(false, SeqCst);
    }

    /// Ends a sleep of this thread in a foreign event loop, because the thread has made work itself.
    #[inline]
    pub fn notify_here(&self) {
        self.queue.notifier.notify_here();
    }

    /// Drops every task except the one that is running, which is the caller.
    pub fn clear(&self) {
        let is_waiting = |slot: &mut Slot| slot.task.is_some();
        let mut slots = self.slots.borrow_mut();
        let waiting: Vec<_> =
            (0..).zip(slots.iter_mut()).filter_map(|(i, slot)| Some((i, slot.take_if(is_waiting)?))).collect();
        drop(slots);
        self.live.set(self.live.get() - waiting.len());
        self.free.borrow_mut().extend(waiting.iter().map(|(index, _): &(u32, Slot)| *index));
        drop(waiting);
    }
}
