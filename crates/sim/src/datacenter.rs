//! The datacenter, the interface for users.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;

use dunlin_net::{Addr, NetError};

use crate::engine::time::{from_nanos, to_nanos};
use crate::error::SimError;
use crate::fabric::{Port, PortCounters};
use crate::fault::{Fault, FaultId, FaultPlan};
use crate::host::{CostModel, Next, Program, SimTransport, ThreadClock};
use crate::topology::Topology;
use crate::trace::capture::{Capture, CapturePoint};
use crate::trace::series::{Sampler, Series};
use crate::world::faults::Blow;
use crate::world::{Counters, Shared, Step, World};

/// Makes the program of a thread: when it is spawned, and again when its host restarts with lost memory.
type Factory = Box<dyn FnMut(SimTransport) -> Box<dyn Program>>;

/// A simulated datacenter. See the [crate] for an example.
pub struct Datacenter {
    shared: Rc<Shared>,
    /// By index of the thread.
    threads: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    program: Option<Box<dyn Program>>,
    factory: Option<Factory>,
}

impl std::fmt::Debug for Datacenter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datacenter")
            .field("now", &self.now())
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Datacenter {
    /// An idle datacenter at time zero. All random events in it follow from `seed`.
    ///
    /// # Errors
    /// [`SimError::BadSetting`] if the topology is invalid.
    pub fn new(topology: &Topology, cost: CostModel, seed: u64) -> Result<Self, SimError> {
        topology.check()?;
        let now = Rc::new(Cell::new(0));
        let world = RefCell::new(World::new(topology, cost, now.clone(), seed));
        Ok(Datacenter { shared: Rc::new(Shared { now, world, wakes: Default::default() }), threads: Vec::new() })
    }

    /// The address of a thread.
    pub fn addr(host: u32, thread: u16) -> Addr {
        Addr::Sim { host, thread }
    }

    /// Makes a transport for a thread, which receives from now on. Give it to a program of that thread
    /// ([`Datacenter::spawn`]), or use it from outside between runs.
    ///
    /// # Errors
    /// [`SimError::NoHost`], [`SimError::NoThread`]; [`SimError::InUse`] if the thread has a transport;
    /// [`SimError::HostDown`].
    pub fn bind(&mut self, host: u32, thread: u16) -> Result<SimTransport, SimError> {
        let index = self.thread(host, thread)?;
        let world = self.shared.world.borrow();
        if !world.hosts[host as usize].is_up {
            return Err(SimError::HostDown { host });
        }
        if world.threads[index as usize].transport.is_some() {
            return Err(SimError::InUse { host, thread, what: "a transport" });
        }
        drop(world);
        Ok(SimTransport::new(&self.shared, index))
    }

    /// Runs a program on a thread, from now on. If its host crashes, the program is dropped and does not come back.
    ///
    /// # Errors
    /// [`SimError::NoHost`], [`SimError::NoThread`]; [`SimError::InUse`] if the thread has a program;
    /// [`SimError::HostDown`].
    pub fn spawn(&mut self, host: u32, thread: u16, program: impl Program + 'static) -> Result<(), SimError> {
        let index = self.free_thread(host, thread)?;
        self.threads[index as usize].program = Some(Box::new(program));
        self.shared.world.borrow_mut().start(index);
        Ok(())
    }

    /// Runs the program that `factory` makes of a new transport. When the host restarts after a crash, `factory` is
    /// called again.
    ///
    /// # Errors
    /// As [`Datacenter::spawn`] and [`Datacenter::bind`].
    pub fn spawn_from<F, P>(&mut self, host: u32, thread: u16, mut factory: F) -> Result<(), SimError>
    where
        F: FnMut(SimTransport) -> P + 'static,
        P: Program + 'static,
    {
        let index = self.free_thread(host, thread)?;
        let transport = self.bind(host, thread)?;
        let mut factory: Factory = Box::new(move |transport| Box::new(factory(transport)));
        let program = factory(transport);
        self.threads[index as usize] = Slot { program: Some(program), factory: Some(factory) };
        self.shared.world.borrow_mut().start(index);
        Ok(())
    }

    /// The clock of a thread.
    ///
    /// # Errors
    /// [`SimError::NoHost`], [`SimError::NoThread`].
    pub fn clock(&mut self, host: u32, thread: u16) -> Result<ThreadClock, SimError> {
        let index = self.thread(host, thread)?;
        Ok(self.shared.world.borrow().threads[index as usize].clock.clone())
    }

    /// Virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        to_nanos(self.shared.now.get())
    }

    /// Advances time to `time`, in nanoseconds.
    ///
    /// # Panics
    /// If a program panics, or one transport is used inside a call of another.
    pub fn run_until(&mut self, time: u64) {
        self.run(time, || true);
    }

    /// Advances time while `condition` holds; it is checked before every run of a program. Returns false if no events
    /// are left although it still holds.
    ///
    /// # Panics
    /// As [`Datacenter::run_until`].
    pub fn run_while(&mut self, condition: impl FnMut() -> bool) -> bool {
        self.run_while_until(u64::MAX, condition)
    }

    /// As [`Datacenter::run_while`], up to `time` at most, in nanoseconds. Returns false if `condition` held to the
    /// end.
    ///
    /// # Panics
    /// As [`Datacenter::run_until`].
    pub fn run_while_until(&mut self, time: u64, condition: impl FnMut() -> bool) -> bool {
        self.run(time, condition)
    }

    fn run(&mut self, time: u64, mut condition: impl FnMut() -> bool) -> bool {
        let limit = from_nanos(time);
        loop {
            if !condition() {
                return true;
            }
            if let Some(woken) = self.shared.wakes.take() {
                let mut world = self.shared.world.borrow_mut();
                woken.into_iter().for_each(|thread| world.wake(thread));
            }
            let step = self.shared.world.borrow_mut().advance(limit);
            match step {
                Step::Run { thread } => self.run_thread(thread),
                Step::Blow(blow) => self.suffer(blow),
                Step::Quiet => return false,
            }
        }
    }

    fn run_thread(&mut self, index: u32) {
        let slot = &mut self.threads[index as usize];
        let Some(program) = &mut slot.program else { return };
        let next = program.run();
        self.shared.world.borrow_mut().after_run(index, next);
        if next == Next::Done {
            slot.program = None;
        }
    }

    /// Records packets from now on, in a file that Wireshark opens, until [`Datacenter::finish_capture`]. Each packet
    /// is one write to `output`: use a buffered one.
    pub fn capture(&mut self, point: CapturePoint, output: impl Write + 'static) {
        self.shared.world.borrow_mut().capture = Some(Capture::new(point, Box::new(output)));
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// [`NetError::Io`]: the first error of writing the file.
    pub fn finish_capture(&mut self) -> Result<(), NetError> {
        let capture = self.shared.world.borrow_mut().capture.take();
        capture.map_or(Ok(()), Capture::finish)
    }

    /// Samples ports from now on, every `interval_ns` nanoseconds, until [`Datacenter::take_series`].
    ///
    /// # Errors
    /// [`SimError::BadSetting`] if the interval is zero, or there is no such port.
    pub fn watch(&mut self, interval_ns: u64, ports: impl IntoIterator<Item = Port>) -> Result<(), SimError> {
        self.shared.world.borrow_mut().watch(interval_ns, ports.into_iter().collect())
    }

    /// Ends sampling and returns the samples; empty if nothing was watched.
    pub fn take_series(&mut self) -> Series {
        self.shared.world.borrow_mut().sampler.take().map_or_else(Series::default, Sampler::finish)
    }

    /// Schedules faults, which begin and end by their times from now on.
    ///
    /// # Errors
    /// [`SimError::NoHost`] and [`SimError::BadSetting`] if a fault does not fit the topology; then none is scheduled.
    pub fn schedule(&mut self, plan: &FaultPlan) -> Result<(), SimError> {
        self.shared.world.borrow_mut().schedule(plan)
    }

    /// Makes all transports report from now on that paths may carry less than their maximum packet length
    /// ([`Transport::is_mtu_certain`](dunlin_net::Transport::is_mtu_certain)), as on an unknown network.
    /// [`PacketFaults::longest`](crate::fault::PacketFaults::longest) then enforces a limit.
    pub fn make_mtu_uncertain(&mut self) {
        self.shared.world.borrow_mut().is_mtu_uncertain = true;
    }

    /// Begins a fault now.
    ///
    /// # Errors
    /// As [`Datacenter::schedule`].
    pub fn inject(&mut self, fault: Fault) -> Result<FaultId, SimError> {
        let (id, blow) = {
            let mut world = self.shared.world.borrow_mut();
            fault.check(&world.shape)?;
            let id = world.faults.announce(fault);
            (id, world.set_fault(id, true))
        };
        self.suffer(blow);
        Ok(id)
    }

    /// Ends a fault of [`Datacenter::inject`] now. If it was a crash, the host restarts.
    pub fn lift(&mut self, id: FaultId) {
        let blow = self.shared.world.borrow_mut().set_fault(id, false);
        self.suffer(blow);
    }

    /// Applies a fault of a host to its programs.
    fn suffer(&mut self, blow: Blow) {
        let (Blow::Crash { host } | Blow::Restart { host }) = blow else { return };
        let threads = self.shared.world.borrow().threads_of(host);
        for index in threads {
            let Some(slot) = self.threads.get_mut(index as usize) else { continue };
            slot.program = None;
            if let (Blow::Restart { .. }, Some(factory)) = (blow, &mut slot.factory) {
                slot.program = Some(factory(SimTransport::new(&self.shared, index)));
                self.shared.world.borrow_mut().start(index);
            }
        }
    }

    /// Counters of the whole datacenter.
    pub fn counters(&self) -> Counters {
        self.shared.world.borrow().counters()
    }

    /// Counters of one port; `None` if the topology has no such port.
    pub fn port(&self, port: Port) -> Option<PortCounters> {
        let world = self.shared.world.borrow();
        world.shape.link(port).map(|link| world.port_counters(link))
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = Port> + use<> {
        self.shared.world.borrow().shape.ports()
    }

    /// The index of a thread; makes a slot for its program if there is none.
    fn thread(&mut self, host: u32, thread: u16) -> Result<u32, SimError> {
        let index = self.shared.world.borrow_mut().thread_index(host, thread)?;
        if self.threads.len() <= index as usize {
            self.threads.resize_with(index as usize + 1, Slot::default);
        }
        Ok(index)
    }

    fn free_thread(&mut self, host: u32, thread: u16) -> Result<u32, SimError> {
        let index = self.thread(host, thread)?;
        if !self.shared.world.borrow().hosts[host as usize].is_up {
            return Err(SimError::HostDown { host });
        }
        if self.threads[index as usize].program.is_some() {
            return Err(SimError::InUse { host, thread, what: "a program" });
        }
        Ok(index)
    }
}
