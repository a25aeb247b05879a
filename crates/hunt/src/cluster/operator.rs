//! The program of the operator: it requests learners, votes, removals and transfers of leadership while clients work,
//! and replaces replicas whose disks have rotted.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_sim::{Next, Program, SimTransport, ThreadClock};
use dunlin_smr::Client;
use dunlin_smr::wire::request::Change;
use dunlin_smr::wire::response::{Role, Status};
use dunlin_trial::Random;

use super::Service;
use super::run::Shared;
use super::scenario::{Scenario, address};
use crate::clients::driver::Tasks;
use crate::clients::phases::{Doings, Phase};
use crate::node::run_endpoint;

/// Interval at which it checks for work.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The program.
pub struct Operator {
    endpoint: Rc<Endpoint<SimTransport>>,
    clock: ThreadClock,
    /// Dropped with the program, before its endpoint.
    _tasks: Tasks,
    idle_runs: u32,
}

/// The state of its task.
struct Desk<S: Service> {
    shared: Rc<Shared<S>>,
    client: Client<SimTransport>,
    clock: ThreadClock,
    random: RefCell<Random>,
}

impl Operator {
    /// Starts after `incarnation` crashes.
    pub fn start<S: Service>(shared: &Rc<Shared<S>>, incarnation: u32, transport: SimTransport) -> Operator {
        let scenario = &shared.scenario;
        let (clock, waker) = (transport.clock(), transport.waker());
        let mut random = Random::new(scenario.seed ^ 0x09e4_a704 ^ u64::from(incarnation) << 40);
        let config = EndpointConfig { seed: Some(random.next()), ..scenario.operator_endpoint().clone() };
        let endpoint = Rc::new(Endpoint::new(transport, config).expect("drawn settings are valid"));
        // A failed assertion in a task fails the run.
        endpoint.propagate_panics();
        let client = Client::new(&endpoint, scenario.first_members(), scenario.client);
        // It checks each of them.
        scenario.replicas().for_each(|id| client.learn(id, address(id)));
        let mut tasks = Tasks::new(endpoint.clone(), Rc::new(Doings::new(waker)));
        let desk = Desk { shared: shared.clone(), client, clock: clock.clone(), random: RefCell::new(random) };
        tasks.spawn(desk.work());
        Operator { endpoint, clock, _tasks: tasks, idle_runs: 0 }
    }
}

impl Program for Operator {
    fn run(&mut self) -> Next {
        if run_endpoint(&self.endpoint, &self.clock, &mut self.idle_runs) {
            return Next::Soon;
        }
        Next::OnPacket { or_at: self.endpoint.next_due() }
    }
}

impl<S: Service> Desk<S> {
    async fn work(self) {
        let Scenario { changes, steps, gap_max_ns, .. } = self.shared.scenario;
        let gap_ns = u64::from(steps) * gap_max_ns / u64::from(changes.max(1));
        let mut next = self.clock.now() + self.random.borrow_mut().between(0, gap_ns);
        loop {
            self.client.timers().sleep(LOOK_EVERY).await;
            let damaged = self.shared.rot.borrow().to_replace();
            if let Some(id) = damaged {
                self.replace(id).await;
            } else if self.clock.now() >= next && self.shared.clients.phase() == Phase::Working && self.takes_change() {
                next = self.clock.now() + self.random.borrow_mut().between(0, gap_ns);
                self.change_something().await;
            }
        }
    }

    fn takes_change(&self) -> bool {
        let left = self.shared.changes_left.get();
        self.shared.changes_left.set(left.saturating_sub(1));
        left > 0
    }

    /// Follows the advice of a replica that refuses to start: removes it, and adds another; or in the other order.
    async fn replace(&self, id: u64) {
        let fresh = self.shared.scenario.replacement(id);
        let removes_first = self.random.borrow_mut().chance(50);
        while let Some(change) = self.next_step(id, fresh, removes_first).await {
            // The next check shows the result, whatever it is.
            if let Some(change) = change {
                self.change(change).await;
            }
            self.client.timers().sleep(LOOK_EVERY).await;
        }
        self.shared.rot.borrow_mut().replaced(id);
    }

    /// The next change for replacing a member; inner `None` if no replica reports its status, outer `None` if it is
    /// done.
    async fn next_step(&self, old: u64, fresh: u64, removes_first: bool) -> Option<Option<Change>> {
        let Some(status) = self.leader().await else { return Some(None) };
        let is_member = |id: &u64| status.voters.contains(id) || status.learners.contains(id);
        let remove = || Change::Remove { id: old };
        if removes_first && is_member(&old) {
            return Some(Some(remove()));
        }
        if !is_member(&fresh) {
            return Some(Some(Change::AddLearner { id: fresh, address: address(fresh).to_string() }));
        }
        if status.learners.contains(&fresh) {
            return Some(Some(Change::Promote { id: fresh }));
        }
        is_member(&old).then(|| Some(remove()))
    }

    /// Requests some change, whether or not it makes sense. Many are refused.
    async fn change_something(&self) {
        let looks = self.random.borrow_mut().chance(60);
        let status = if looks { self.leader().await } else { None };
        let change = match status {
            Some(status) => self.draw_sensible(&status),
            None => self.draw(),
        };
        match change {
            Some(change) => {
                let has_second = self.random.borrow_mut().chance(40);
                let second = if has_second { self.draw() } else { None };
                // Two at a time: the second waits for the first, or is refused.
                let second = async {
                    if let Some(second) = second {
                        self.change(second).await;
                    }
                };
                both(self.change(change), second).await;
            }
            None => {
                let to = self.random.borrow_mut().between(1, self.shared.scenario.replicas_max());
                let done = self.client.transfer(to).await;
                self.shared.changes_made.set(self.shared.changes_made.get() + u64::from(done.is_ok()));
            }
        }
    }

    async fn change(&self, change: Change) {
        let done = self.client.change(change).await;
        self.shared.changes_made.set(self.shared.changes_made.get() + u64::from(done.is_ok()));
    }

    /// A random change; `None` for a transfer of leadership.
    fn draw(&self) -> Option<Change> {
        let scenario = &self.shared.scenario;
        let r = &mut *self.random.borrow_mut();
        let spare = scenario.members + r.between(1, scenario.spares.max(1));
        match r.between(0, 9) {
            0..=2 if scenario.spares > 0 => Some(Change::AddLearner { id: spare, address: address(spare).to_string() }),
            3..=5 if scenario.spares > 0 => Some(Change::Promote { id: spare }),
            6 => self.draw_removal(r, |_| true),
            _ => None,
        }
    }

    /// A change that is possible in this status; `None` for a transfer of leadership.
    fn draw_sensible(&self, status: &Status) -> Option<Change> {
        let scenario = &self.shared.scenario;
        let r = &mut *self.random.borrow_mut();
        let is_member = |id: &u64| status.voters.contains(id) || status.learners.contains(id);
        let spares = scenario.members + 1..=scenario.members + scenario.spares;
        let absent: Vec<u64> = spares.clone().filter(|id| !is_member(id)).collect();
        let learners: Vec<u64> = spares.filter(|id| status.learners.contains(id)).collect();
        match r.between(0, 9) {
            0..=3 if !learners.is_empty() => r.pick(&learners).map(|id| Change::Promote { id: *id }),
            0..=6 if !absent.is_empty() => {
                r.pick(&absent).map(|id| Change::AddLearner { id: *id, address: address(*id).to_string() })
            }
            0..=8 => self.draw_removal(r, |id| is_member(id) && *id != status.id),
            _ => None,
        }
    }

    /// A member to remove. The first one stays, because clients find the others through it. While disks are to rot, no
    /// other member leaves, so that never more than a minority is gone.
    fn draw_removal(&self, r: &mut Random, may_leave: impl Fn(&u64) -> bool) -> Option<Change> {
        let scenario = &self.shared.scenario;
        if !scenario.rots.is_empty() {
            return None;
        }
        let leaving: Vec<u64> = (2..=scenario.members + scenario.spares).filter(may_leave).collect();
        r.pick(&leaving).map(|id| Change::Remove { id: *id })
    }

    /// The status of the leader, if one answers.
    async fn leader(&self) -> Option<Status> {
        let mut leader: Option<Status> = None;
        for id in self.shared.scenario.replicas() {
            if self.shared.rot.borrow().is_rotten(id) {
                continue;
            }
            if let Ok(status) = self.client.status(id).await
                && status.role == Role::Leader
                && leader.as_ref().is_none_or(|before| before.term < status.term)
            {
                leader = Some(status);
            }
        }
        leader
    }
}

/// Waits for two futures concurrently.
async fn both(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut left = [true; 2];
    poll_fn(|context| {
        if left[0] && first.as_mut().poll(context).is_ready() {
            left[0] = false;
        }
        if left[1] && second.as_mut().poll(context).is_ready() {
            left[1] = false;
        }
        if left == [false; 2] { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
