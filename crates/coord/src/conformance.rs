//! What every back end must do: [`check`] tests one, and panics where the back end breaks a promise. It is for authors
//! of back ends.
//!
//! The cluster manager may be in use, but not under paths below `/conformance` or by members from 7001 to 7099, and no
//! other member may join or fail meanwhile, since epochs are counted.

use std::time::Duration;

use dunlin_net::clock::nanos;

use crate::campaign::{campaign, campaign_as, campaign_until};
use crate::coordinator::{Coordinator, Watch, join_after_leases};
use crate::error::CoordError;
use crate::standing::Standing;
use crate::transaction::{TRANSACTION_WRITES_MAX, Transaction};
use crate::types::{Condition, Entry, Event, Happening, Health, Lease, MemberId, Membership, Revision, Scope};

/// Where a back end is tested.
#[allow(async_fn_in_trait)]
pub trait Site {
    /// The back end.
    type Coordinator: Coordinator;

    /// A client that shares nothing with earlier ones.
    fn coordinator(&self) -> Self::Coordinator;

    /// Lets time pass.
    async fn pass(&self, time: Duration);

    /// The failure timeout that the cluster manager is set to.
    fn failure_timeout(&self) -> Duration;

    /// How late a failure, or the end of a lease, may be noticed.
    fn delay_max(&self) -> Duration;

    /// Discards the history that watchers read, up to now.
    async fn forget_history(&self);
}

/// Time of the leases in the tests, in failure timeouts.
const LEASE_OF_TIMEOUT: u32 = 2;

/// A lease of twice the detection time must lapse within this many steps.
const LAPSE_STEPS_MAX: u32 = 40;
/// Heartbeats within one failure timeout.
const HEARTBEATS_OF_TIMEOUT: u32 = 5;

/// Tests everything.
///
/// # Panics
/// If a promise is broken.
pub async fn check<S: Site>(site: &S) {
    let bench = Bench { site, coordinator: site.coordinator() };
    bench.entries_change_on_condition().await;
    bench.transactions_are_done_whole_or_not_at_all().await;
    bench.writes_are_fenced_by_epoch_and_lease().await;
    bench.a_view_is_of_one_moment().await;
    bench.lists_are_whole_and_in_order().await;
    bench.what_cannot_be_is_refused().await;
    bench.members_fail_and_recover().await;
    bench.epochs_are_settled_when_all_have_acknowledged_them().await;
    bench.a_member_knows_until_when_it_is_safe().await;
    bench.an_id_belongs_to_one_process_at_a_time().await;
    bench.a_member_joins_again_after_its_leases().await;
    bench.epochs_are_kept_until_they_are_cut().await;
    bench.leases_have_one_holder().await;
    bench.leases_lapse_unless_renewed().await;
    bench.who_has_failed_cannot_renew().await;
    bench.leaders_follow_each_other().await;
    bench.a_member_leads_under_its_own_id().await;
    bench.watchers_miss_nothing().await;
    bench.what_is_forgotten_is_said_to_be().await;
}

struct Bench<'a, S: Site> {
    site: &'a S,
    coordinator: S::Coordinator,
}

fn describe(happening: &Happening) -> String {
    match happening {
        Happening::Set { path, value } => format!("{path}={}", String::from_utf8_lossy(value)),
        Happening::Deleted { path } => format!("{path} deleted"),
        other => format!("{other:?}"),
    }
}

impl<S: Site> Bench<'_, S> {
    async fn entries_change_on_condition(&self) {
        let c = &self.coordinator;
        let path = "/conformance/entry";
        let _ = c.delete(path, Condition::Always).await;
        assert_eq!(c.get(path).await.unwrap(), None);
        assert!(matches!(c.delete(path, Condition::Always).await, Err(CoordError::NotFound { .. })));
        let stale = Condition::Version { version: 1 };
        assert!(matches!(c.set(path, b"0", stale).await, Err(CoordError::NotFound { .. })));
        let first = c.set(path, b"1", Condition::Absent).await.unwrap();
        assert!(
            matches!(c.set(path, b"2", Condition::Absent).await, Err(CoordError::Exists { version, .. }) if version == first)
        );
        let second = c.set(path, b"2", Condition::Version { version: first }).await.unwrap();
        assert!(second > first, "versions rise");
        let late = c.set(path, b"3", Condition::Version { version: first }).await;
        assert!(matches!(late, Err(CoordError::Changed { version, .. }) if version == second), "{late:?}");
        let late = c.delete(path, Condition::Version { version: first }).await;
        assert!(matches!(late, Err(CoordError::Changed { .. })), "{late:?}");
        let entry = self.site.coordinator().get(path).await.unwrap().unwrap();
        assert_eq!((entry.path.as_str(), entry.version, &entry.value[..]), (path, second, &b"2"[..]));
        let third = c.set(path, b"", Condition::Always).await.unwrap();
        assert_eq!(c.get(path).await.unwrap().unwrap().value, b"", "an empty value is one");
        assert!(c.delete(path, Condition::Version { version: third }).await.unwrap() > third);
        let again = c.set(path, b"4", Condition::Absent).await.unwrap();
        assert!(again > third + 1, "the version of an entry that was deleted never comes again");
        c.delete(path, Condition::Always).await.unwrap();
    }

    async fn transactions_are_done_whole_or_not_at_all(&self) {
        let c = &self.coordinator;
        let [a, b] = ["/conformance/both/a", "/conformance/both/b"];
        for path in [a, b] {
            let _ = c.delete(path, Condition::Always).await;
        }
        let both = Transaction::new().if_entry(a, Condition::Absent).set(a, "1").set(b, "1");
        let first = c.transact(&both).await.unwrap();
        let version = |entry: Option<Entry>| entry.map(|entry| entry.version);
        assert_eq!((version(c.get(a).await.unwrap()), version(c.get(b).await.unwrap())), (Some(first), Some(first)));
        let refused = c.transact(&both).await;
        assert!(
            matches!(&refused, Err(CoordError::Exists { path, version }) if path == a && *version == first),
            "{refused:?}"
        );
        // The compare that does not hold comes last, after a write that would succeed.
        let stale =
            Transaction::new().if_entry(b, Condition::Always).if_entry(a, Condition::Version { version: first - 1 });
        let refused = c.transact(&stale.set(b, "2").delete(a)).await;
        assert!(matches!(refused, Err(CoordError::Changed { version, .. }) if version == first), "{refused:?}");
        let refused = c.transact(&Transaction::new().set(a, "2").delete("/conformance/both/none")).await;
        assert!(matches!(&refused, Err(CoordError::NotFound { what }) if what.ends_with("none")), "{refused:?}");
        assert_eq!((version(c.get(a).await.unwrap()), version(c.get(b).await.unwrap())), (Some(first), Some(first)));
        let holds = Transaction::new().if_entry(a, Condition::Version { version: first });
        assert!(c.transact(&holds).await.unwrap() >= first, "without writes it compares");
        let mut watch = Watch::new(c, Scope::Tree { root: "/conformance/both".into() }, first);
        let second = c.transact(&holds.set(b, "2").delete(a)).await.unwrap();
        let mut events = [watch.next().await.unwrap(), watch.next().await.unwrap()];
        events.sort_by_key(|event| describe(&event.happening));
        assert_eq!(events.each_ref().map(|event| event.revision), [second; 2], "a step has one revision");
        assert_eq!(events.map(|event| describe(&event.happening)), [format!("{a} deleted"), format!("{b}=2")]);
        for bad in
            [Transaction::new().set(a, "").set(a, ""), (0..65).fold(Transaction::new(), |all, _| all.if_epoch(0))]
        {
            let refused = c.transact(&bad).await;
            assert!(matches!(refused, Err(CoordError::BadTransaction { .. })), "{refused:?}");
        }
        let whole = |number: usize| format!("/conformance/both/{number:02}");
        let most = (0..TRANSACTION_WRITES_MAX).fold(Transaction::new(), |all, number| {
            all.if_entry(&whole(number), Condition::Absent).set(&whole(number), vec![0; 7 << 10])
        });
        let set = c.transact(&most).await.unwrap();
        let gone = (0..TRANSACTION_WRITES_MAX).fold(Transaction::new(), |all, number| {
            all.if_entry(&whole(number), Condition::Version { version: set }).delete(&whole(number))
        });
        c.transact(&gone).await.unwrap();
        c.delete(b, Condition::Version { version: second }).await.unwrap();
    }

    async fn writes_are_fenced_by_epoch_and_lease(&self) {
        let (c, path, name) = (&self.coordinator, "/conformance/fenced", "/conformance/fence");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let one = c.join(7013, b"").await.unwrap();
        let old = c.acquire(&one, name, ttl).await.unwrap();
        let fenced = Transaction::new().if_epoch(one.epoch).if_lease(&old).set(path, "old");
        c.transact(&fenced).await.unwrap();
        c.release(&old).await.unwrap();
        let refused = c.transact(&fenced).await;
        assert!(matches!(&refused, Err(CoordError::LeaseLost { token, .. }) if *token == old.token), "{refused:?}");
        let two = c.join(7014, b"").await.unwrap();
        let refused = c.transact(&fenced).await;
        assert!(
            matches!(refused, Err(CoordError::EpochChanged { epoch }) if epoch == two.epoch),
            "the first compare that does not hold is named: {refused:?}"
        );
        let new = c.acquire(&two, name, ttl).await.unwrap();
        let refused = c.transact(&Transaction::new().if_lease(&old).set(path, "older")).await;
        assert!(matches!(refused, Err(CoordError::LeaseLost { .. })), "{refused:?}");
        c.transact(&Transaction::new().if_epoch(two.epoch).if_lease(&new).set(path, "new")).await.unwrap();
        assert_eq!(c.get(path).await.unwrap().unwrap().value, b"new");
        c.delete(path, Condition::Always).await.unwrap();
        c.leave(&one).await.unwrap();
        c.leave(&two).await.unwrap();
    }

    async fn a_view_is_of_one_moment(&self) {
        let (c, root) = (&self.coordinator, "/conformance/view");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let one = c.join(7015, b"about").await.unwrap();
        let (names, other) = ([root.to_owned(), format!("{root}/a")], format!("{root}s"));
        for name in names.iter().chain([&other]) {
            c.acquire(&one, name, ttl).await.unwrap();
            c.set(name, b"1", Condition::Always).await.unwrap();
        }
        // The watchman may write between the two: then their revisions differ, and both are asked again.
        let (mut view, mut members) = (c.view(root).await.unwrap(), c.members().await.unwrap());
        for _ in 0..20 {
            if view.members.revision == members.revision {
                break;
            }
            (view, members) = (c.view(root).await.unwrap(), c.members().await.unwrap());
        }
        assert_eq!(view.leases.iter().map(|lease| lease.name.clone()).collect::<Vec<_>>(), names);
        assert_eq!(view.entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>(), names);
        assert_eq!(view.members, members);
        assert!(view.leases.iter().all(|lease| lease.holder.incarnation == one.incarnation));
        let all = c.view("/").await.unwrap();
        assert!(names.iter().chain([&other]).all(|name| all.entries.iter().any(|entry| entry.path == *name)));
        assert!(matches!(c.view("conformance").await, Err(CoordError::BadPath { .. })));
        for name in names.iter().chain([&other]) {
            c.delete(name, Condition::Always).await.unwrap();
        }
        c.leave(&one).await.unwrap();
        let after = c.view(root).await.unwrap();
        assert!(after.members.revision > view.members.revision && after.leases.is_empty() && after.entries.is_empty());
    }

    async fn lists_are_whole_and_in_order(&self) {
        let c = &self.coordinator;
        let root = "/conformance/list";
        let mut paths: Vec<String> = (0..12).map(|number| format!("{root}/{number}/replicas")).collect();
        for path in paths.iter().map(String::as_str).chain([root, "/conformance/listed"]) {
            c.set(path, &[7; 30_000], Condition::Always).await.unwrap();
        }
        paths.sort();
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = c.list(root, after.as_deref()).await.unwrap();
            found.extend(page.entries.into_iter().map(|entry| entry.path));
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, paths, "those below by whole names, in order");
        assert!(c.list("/conformance/none", None).await.unwrap().entries.is_empty());
        for path in paths.iter().map(String::as_str).chain([root, "/conformance/listed"]) {
            c.delete(path, Condition::Always).await.unwrap();
        }
    }

    async fn what_cannot_be_is_refused(&self) {
        let c = &self.coordinator;
        for path in ["", "/", "conformance", "/conformance/", "/conformance//a", "/conformance/\n"] {
            assert!(matches!(c.set(path, b"", Condition::Always).await, Err(CoordError::BadPath { .. })), "{path:?}");
            assert!(matches!(c.get(path).await, Err(CoordError::BadPath { .. })), "{path:?}");
        }
        let large = c.set("/conformance/large", &vec![0; 1 << 20], Condition::Always).await;
        assert!(matches!(large, Err(CoordError::TooLarge { .. })), "{large:?}");
        assert!(matches!(c.join(7001, &[0; 100_000]).await, Err(CoordError::TooLarge { .. })));
        let member = c.join(7001, b"").await.unwrap();
        for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(100_000), Duration::MAX] {
            let refused = c.acquire(&member, "/conformance/lease", ttl).await;
            assert!(matches!(refused, Err(CoordError::BadTtl { .. })), "{refused:?}");
        }
        let nobody = Membership { member: 7002, ..member };
        let refused = c.acquire(&nobody, "/conformance/lease", Duration::from_secs(1)).await;
        assert!(matches!(refused, Err(CoordError::NotLive { member: 7002, .. })), "{refused:?}");
        assert!(matches!(c.heartbeat(&nobody).await, Err(CoordError::NotLive { .. })));
        assert!(matches!(c.forget(7002).await, Err(CoordError::NotFound { .. })));
        assert!(matches!(c.forget(7001).await, Err(CoordError::Live { member: 7001 })));
        c.leave(&member).await.unwrap();
        assert!(matches!(c.leave(&member).await, Err(CoordError::NotLive { .. })));
    }

    async fn health(&self, id: MemberId) -> (u64, Option<Health>) {
        let members = self.coordinator.members().await.unwrap();
        assert!(members.members.is_sorted_by_key(|member| member.id));
        (members.epoch, members.members.iter().find(|member| member.id == id).map(|member| member.health))
    }

    /// Lets time pass, while these members send heartbeats and these leases are renewed.
    async fn attended(&self, time: Duration, members: &[&Membership], leases: &mut [&mut Lease]) {
        let steps = (time.as_nanos() / (self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT).as_nanos()) as u32 + 1;
        for _ in 0..steps {
            for member in members {
                self.coordinator.heartbeat(member).await.unwrap();
            }
            for lease in leases.iter_mut() {
                self.coordinator.renew(lease).await.unwrap();
            }
            self.site.pass(time / steps).await;
        }
    }

    fn until_noticed(&self) -> Duration {
        self.site.failure_timeout() + self.site.delay_max()
    }

    /// Sends a heartbeat of a member that knows this epoch, and returns the answer.
    async fn heard(&self, member: &Membership, epoch: u64) -> (u64, bool) {
        let heard = self.coordinator.heartbeat(&Membership { epoch, ..*member }).await.unwrap();
        (heard.epoch, heard.is_settled)
    }

    async fn epochs_are_settled_when_all_have_acknowledged_them(&self) {
        let c = &self.coordinator;
        let one = c.join(7016, b"").await.unwrap();
        let two = c.join(7017, b"").await.unwrap();
        let epoch = two.epoch;
        for _ in 0..2 * HEARTBEATS_OF_TIMEOUT {
            assert_eq!(self.heard(&two, epoch).await, (epoch, false), "the other has not heard of it");
            assert_eq!(self.heard(&one, one.epoch).await, (epoch, false), "it has not said so");
            self.site.pass(self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT).await;
        }
        let mut tries = 0;
        while ![self.heard(&one, epoch).await, self.heard(&two, epoch).await]
            .iter()
            .all(|heard| *heard == (epoch, true))
        {
            tries += 1;
            assert!(tries < 4 * HEARTBEATS_OF_TIMEOUT, "all have acknowledged it");
            self.site.pass(self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT).await;
        }
        c.leave(&two).await.unwrap();
        assert_eq!(self.heard(&one, epoch).await, (epoch + 1, false), "it is another one");
        c.leave(&one).await.unwrap();
    }

    async fn members_fail_and_recover(&self) {
        let c = &self.coordinator;
        let (epoch, before) = self.health(7003).await;
        assert_eq!(before, None);
        let stays = c.join(7004, b"stays").await.unwrap();
        let fails = c.join(7003, b"udp://10.0.0.7:4000").await.unwrap();
        assert_eq!((stays.epoch, fails.epoch), (epoch + 1, epoch + 2), "each join is an epoch");
        let members = c.members().await.unwrap();
        let member = members.members.iter().find(|member| member.id == 7003).unwrap();
        assert_eq!((&member.about[..], member.incarnation), (&b"udp://10.0.0.7:4000"[..], fails.incarnation));
        self.attended(2 * self.until_noticed(), &[&stays, &fails], &mut []).await;
        assert_eq!(self.health(7003).await, (epoch + 2, Some(Health::Live)), "who is heard does not fail");
        self.attended(self.until_noticed(), &[&stays], &mut []).await;
        assert_eq!(self.health(7003).await, (epoch + 3, Some(Health::Failed)), "a failure is an epoch");
        assert_eq!(self.health(7004).await.1, Some(Health::Live));
        let late = c.heartbeat(&fails).await;
        assert!(matches!(late, Err(CoordError::NotLive { member: 7003, .. })), "who has failed learns of it: {late:?}");
        assert_eq!(c.heartbeat(&stays).await.unwrap().epoch, epoch + 3, "others learn the epoch");
        let again = c.join(7003, b"again").await.unwrap();
        assert_eq!(again.epoch, epoch + 4, "a recovery is an epoch");
        assert!(again.incarnation > fails.incarnation);
        assert!(matches!(c.heartbeat(&fails).await, Err(CoordError::NotLive { .. })), "the one of before stays out");
        c.leave(&again).await.unwrap();
        assert_eq!(self.health(7003).await, (epoch + 5, None));
        self.attended(self.site.delay_max(), &[], &mut []).await;
        self.attended(self.until_noticed(), &[], &mut []).await;
        assert_eq!(self.health(7004).await, (epoch + 6, Some(Health::Failed)));
        c.forget(7004).await.unwrap();
        assert_eq!(self.health(7004).await, (epoch + 6, None), "who is forgotten was not live before");
    }

    async fn a_member_knows_until_when_it_is_safe(&self) {
        let c = &self.coordinator;
        let three_quarters = nanos(self.site.failure_timeout()) / 4 * 3;
        let (one, two) = (c.join(7016, b"").await.unwrap(), c.join(7017, b"").await.unwrap());
        let before = c.now();
        let mut heard = c.heartbeat(&one).await.unwrap();
        assert!(heard.safe_until >= before + three_quarters && heard.safe_until <= c.now() + three_quarters);
        assert!(heard.safe_until > one.safe_until, "each heartbeat makes it longer");
        // A little longer than a slow answer; after that it is silent.
        self.attended(self.site.failure_timeout() / 4, &[&one, &two], &mut []).await;
        heard.safe_until = c.heartbeat(&one).await.unwrap().safe_until;
        let standing = Standing::new(&one);
        standing.heard(&heard);
        while let Ok(epoch) = standing.check(c.now()) {
            let health = self.health(7016).await.1;
            // Reading the clock took time.
            if standing.check(c.now()).is_ok() {
                assert_eq!((epoch, health), (heard.epoch, Some(Health::Live)), "it learns first that it is not safe");
            }
            self.attended(self.site.failure_timeout() / 10, &[&two], &mut []).await;
        }
        self.attended(self.until_noticed(), &[&two], &mut []).await;
        assert_eq!(self.health(7016).await.1, Some(Health::Failed));
        let why = standing.attend(c, self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT).await;
        assert!(matches!(why, CoordError::NotLive { member: 7016, .. }), "{why}");
        assert!(standing.check(0).is_err(), "it is over for good");
        c.forget(7016).await.unwrap();
        c.leave(&two).await.unwrap();
    }

    async fn an_id_belongs_to_one_process_at_a_time(&self) {
        let (c, name) = (&self.coordinator, "/conformance/taken");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let first = c.join(7005, b"first").await.unwrap();
        let refused = c.join(7005, b"second").await;
        assert_eq!(refused, Err(CoordError::Live { member: 7005 }), "the first may work still");
        assert_eq!(self.heard(&first, first.epoch).await.0, first.epoch, "and is heard");
        c.leave(&first).await.unwrap();
        let second = c.join(7005, b"second").await.unwrap();
        assert!(second.incarnation > first.incarnation && second.epoch > first.epoch);
        assert!(matches!(c.heartbeat(&first).await, Err(CoordError::NotLive { .. })));
        assert!(matches!(c.acquire(&first, name, ttl).await, Err(CoordError::NotLive { .. })));
        // One that is silent is followed when it has failed.
        let every = self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT;
        let third = join_after_leases(c, 7005, b"third", every).await.unwrap();
        assert!(c.now() >= second.safe_until && third.epoch > second.epoch + 1);
        c.leave(&third).await.unwrap();
    }

    async fn a_member_joins_again_after_its_leases(&self) {
        let (c, name) = (&self.coordinator, "/conformance/lent");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let first = c.join(7018, b"first").await.unwrap();
        let old = c.acquire(&first, name, ttl).await.unwrap();
        let refused = c.join(7018, b"second").await;
        assert!(
            matches!(&refused, Err(CoordError::LeasesRun { member: 7018, name: held }) if held == name),
            "{refused:?}"
        );
        let every = self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT;
        let second = join_after_leases(c, 7018, b"second", every).await.unwrap();
        assert!(c.now() >= old.safe_until, "what rested on its leases is over");
        assert!(second.incarnation > first.incarnation);
        let new = c.acquire(&second, name, ttl).await.unwrap();
        assert!(new.token > old.token);
        assert!(matches!(c.release(&old).await, Err(CoordError::LeaseLost { .. })));
        let holder = c.holder(name).await.unwrap().map(|holder| (holder.incarnation, holder.token));
        assert_eq!(holder, Some((second.incarnation, new.token)));
        c.leave(&second).await.unwrap();
        assert_eq!(c.holder(name).await.unwrap(), None, "who leaves holds nothing");
        let third = c.join(7018, b"third").await.unwrap();
        c.leave(&third).await.unwrap();
    }

    async fn epochs_are_kept_until_they_are_cut(&self) {
        let c = &self.coordinator;
        let (fails, stays) = (c.join(7019, b"").await.unwrap(), c.join(7020, b"").await.unwrap());
        self.attended(self.until_noticed(), &[&stays], &mut []).await;
        let members = c.members().await.unwrap();
        let epoch_of = |id| members.members.iter().find(|member| member.id == id).map(|member| member.epoch);
        let failed_in = stays.epoch + 1;
        assert_eq!((epoch_of(7019), epoch_of(7020)), (Some(failed_in), Some(stays.epoch)));
        let again = c.join(7019, b"").await.unwrap();
        c.leave(&again).await.unwrap();
        c.leave(&stays).await.unwrap();
        let left = |member, epoch| Happening::Left { member, epoch };
        let expected = [
            Happening::Joined { member: 7020, epoch: failed_in - 1 },
            Happening::Failed { member: 7019, epoch: failed_in },
            Happening::Joined { member: 7019, epoch: failed_in + 1 },
            left(7019, failed_in + 2),
            left(7020, failed_in + 3),
        ];
        let page = c.epochs(fails.epoch).await.unwrap();
        assert!(!page.has_more && page.epochs.is_sorted_by_key(|change| (change.epoch, change.revision)));
        assert_eq!(page.epochs.into_iter().flat_map(|change| change.changes).collect::<Vec<_>>(), expected);
        assert!(c.epochs(failed_in + 3).await.unwrap().epochs.is_empty());
        let early = c.cut_epochs(failed_in + 4).await;
        assert!(
            matches!(early, Err(CoordError::EpochAhead { asked, epoch }) if (asked, epoch) == (failed_in + 4, failed_in + 3)),
            "{early:?}"
        );
        c.cut_epochs(failed_in).await.unwrap();
        let cut = c.epochs(failed_in - 1).await;
        assert!(matches!(cut, Err(CoordError::EpochsCut { epoch }) if epoch == failed_in), "{cut:?}");
        assert_eq!(c.epochs(failed_in).await.unwrap().epochs.len(), 3);
        c.cut_epochs(failed_in + 3).await.unwrap();
        assert_eq!(c.epochs(failed_in + 3).await.unwrap().epochs, []);
        assert!(c.epochs(failed_in + 2).await.is_err());
    }

    async fn leases_have_one_holder(&self) {
        let (c, name) = (&self.coordinator, "/conformance/lease");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let (one, two) = (c.join(7006, b"").await.unwrap(), c.join(7007, b"").await.unwrap());
        assert_eq!(c.holder(name).await.unwrap(), None);
        let first = c.acquire(&one, name, ttl).await.unwrap();
        assert!(first.safe_until <= c.now() + nanos(ttl) * 3 / 4, "the holder counts from before it asked");
        let refused = c.acquire(&two, name, ttl).await;
        assert!(
            matches!(refused, Err(CoordError::Held { holder: 7006, token, .. }) if token == first.token),
            "{refused:?}"
        );
        let second = c.acquire(&one, name, ttl).await.unwrap();
        assert!(second.token > first.token, "each grant has a token of its own");
        assert!(matches!(c.renew(&mut first.clone()).await, Err(CoordError::LeaseLost { .. })));
        assert!(
            c.acquire(&one, name, ttl / 2).await.unwrap().ttl_ms >= first.ttl_ms,
            "no grant cuts the one before short"
        );
        let second = c.acquire(&one, name, ttl).await.unwrap();
        let mut renewed = second.clone();
        c.renew(&mut renewed).await.unwrap();
        assert_eq!(renewed.ttl_ms, second.ttl_ms);
        c.release(&second).await.unwrap();
        assert!(matches!(c.release(&second).await, Err(CoordError::LeaseLost { .. })));
        let third = self.site.coordinator().acquire(&two, name, ttl).await.unwrap();
        assert!(third.token > second.token, "tokens rise");
        let holder = c.holder(name).await.unwrap().unwrap();
        assert_eq!((holder.member, holder.token), (7007, third.token));
        c.acquire(&one, "/conformance/lease/other", ttl).await.unwrap();
        let (mut names, mut after) = (Vec::new(), Some("/conformance".to_owned()));
        while let Some(last) = after {
            let page = c.leases(Some(&last)).await.unwrap();
            assert!(page.leases.iter().filter(|lease| lease.name == name).all(|lease| lease.holder == holder));
            names.extend(page.leases.into_iter().map(|lease| lease.name));
            after = page.more_after;
        }
        names.retain(|listed| listed.starts_with(name));
        assert_eq!(names, [name, "/conformance/lease/other"], "all that are held, in order");
        c.leave(&one).await.unwrap();
        c.leave(&two).await.unwrap();
    }

    async fn leases_lapse_unless_renewed(&self) {
        let (c, name) = (&self.coordinator, "/conformance/lapsing");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let (one, two) = (c.join(7008, b"").await.unwrap(), c.join(7009, b"").await.unwrap());
        let mut lease = c.acquire(&one, name, ttl).await.unwrap();
        let until = lease.safe_until;
        self.attended(2 * ttl, &[&one, &two], &mut [&mut lease]).await;
        assert!(lease.safe_until > until, "a renewal lasts longer");
        assert_eq!(
            c.holder(name).await.unwrap().map(|holder| holder.token),
            Some(lease.token),
            "what is renewed is held"
        );
        while c.now() < lease.safe_until {
            assert!(
                matches!(c.acquire(&two, name, ttl).await, Err(CoordError::Held { .. })),
                "the holder's count ends first"
            );
            self.attended(ttl / 12, &[&one, &two], &mut []).await;
        }
        self.attended(ttl / 4 + self.site.delay_max(), &[&one, &two], &mut []).await;
        let next = c.acquire(&two, name, ttl).await.unwrap();
        assert!(next.token > lease.token);
        assert!(matches!(c.renew(&mut lease).await, Err(CoordError::LeaseLost { .. })));
        c.leave(&one).await.unwrap();
        c.leave(&two).await.unwrap();
    }

    async fn who_has_failed_cannot_renew(&self) {
        let (c, name) = (&self.coordinator, "/conformance/orphan");
        // Long enough to outlast the detection of the failure.
        let ttl = LEASE_OF_TIMEOUT * self.until_noticed();
        let (fails, waits) = (c.join(7010, b"").await.unwrap(), c.join(7011, b"").await.unwrap());
        let mut lease = c.acquire(&fails, name, ttl).await.unwrap();
        self.attended(self.until_noticed(), &[&waits], &mut []).await;
        assert_eq!(self.health(7010).await.1, Some(Health::Failed));
        let held = c.acquire(&waits, name, ttl).await;
        assert!(
            matches!(held, Err(CoordError::Held { holder: 7010, .. })),
            "a lease outlives the failure of its holder: {held:?}"
        );
        assert!(matches!(c.renew(&mut lease).await, Err(CoordError::NotLive { member: 7010, .. })));
        let mut steps = 0;
        while c.holder(name).await.unwrap().is_some() {
            steps += 1;
            assert!(steps < LAPSE_STEPS_MAX, "but not for ever");
            self.attended(self.until_noticed(), &[&waits], &mut []).await;
        }
        assert!(c.acquire(&waits, name, ttl).await.unwrap().token > lease.token);
        c.forget(7010).await.unwrap();
        c.leave(&waits).await.unwrap();
    }

    async fn leaders_follow_each_other(&self) {
        let (c, name) = (&self.coordinator, "/conformance/leader");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let mut first = campaign(c, 7021, name, ttl).await.unwrap();
        let mandate = first.mandate();
        let deadline = c.now() + nanos(ttl) / 4;
        let waits = campaign_until(c, 7022, name, ttl, deadline).await.err();
        assert!(matches!(waits, Some(CoordError::TimedOut { .. })), "one leads at a time: {waits:?}");
        // The cluster manager may have been unavailable when it left.
        if !waits.is_some_and(|error| error.may_have_run()) {
            assert_eq!(self.health(7022).await.1, None, "who gives up has left");
        }
        // Longer than the lease lasts without a renewal.
        assert_eq!(
            first
                .while_safe(async {
                    self.site.pass(2 * ttl).await;
                    5
                })
                .await,
            Some(5)
        );
        assert!(first.is_safe() && mandate.is_safe(c.now()));
        c.transact(&Transaction::new().if_lease(first.lease()).set(name, "first")).await.unwrap();
        let fence = Transaction::new().if_lease(first.lease()).delete(name);
        first.resign().await.unwrap();
        assert!(!mandate.is_safe(0), "it ends before the next begins");
        let second = campaign(c, 7022, name, ttl).await.unwrap();
        assert!(second.token() > mandate.token());
        assert!(matches!(c.transact(&fence).await, Err(CoordError::LeaseLost { .. })));
        c.transact(&Transaction::new().if_lease(second.lease()).delete(name)).await.unwrap();
        // A leadership that is not polled loses the lease.
        let mandate = second.mandate();
        let third = campaign(c, 7023, name, ttl).await.unwrap();
        assert!(third.token() > mandate.token() && !mandate.is_safe(c.now()), "the one before had stopped");
        third.resign().await.unwrap();
        let _ = c.forget(7022).await;
    }

    async fn a_member_leads_under_its_own_id(&self) {
        let (c, name) = (&self.coordinator, "/conformance/leader");
        let ttl = LEASE_OF_TIMEOUT * self.site.failure_timeout();
        let member = c.join(7024, b"primary").await.unwrap();
        let standing = Standing::new(&member);
        let mut first = campaign_as(c, &standing, name, ttl).await.unwrap();
        assert_eq!(first.membership().incarnation, member.incarnation);
        let works = async {
            self.site.pass(2 * ttl).await;
            // The cluster manager may be unavailable at that moment.
            for _ in 0..100 {
                match standing.check(c.now()) {
                    Ok(epoch) => return epoch,
                    Err(_) => self.site.pass(self.site.failure_timeout() / HEARTBEATS_OF_TIMEOUT).await,
                }
            }
            panic!("what a member is told while it leads does not count for its standing")
        };
        assert_eq!(first.while_safe(works).await, Some(member.epoch));
        first.resign().await.unwrap();
        assert_eq!(c.holder(name).await.unwrap(), None, "what it resigns from is free");
        assert_eq!(self.health(7024).await, (member.epoch, Some(Health::Live)), "the member stays, as it was");
        let second = campaign_as(c, &standing, name, ttl).await.unwrap();
        c.leave(&member).await.unwrap();
        assert!(matches!(second.resign().await, Err(CoordError::LeaseLost { .. })));
        let refused = campaign_as(c, &standing, name, ttl).await.err();
        assert!(matches!(refused, Some(CoordError::NotLive { member: 7024, .. })), "{refused:?}");
        assert!(standing.check(0).is_err(), "its standing ends");
        for (name, ttl) in [("leader", ttl), (name, Duration::ZERO)] {
            let refused = campaign(c, 7024, name, ttl).await.err();
            assert!(matches!(refused, Some(CoordError::BadPath { .. } | CoordError::BadTtl { .. })), "{refused:?}");
            assert_eq!(self.health(7024).await.1, None, "who cannot lead does not join");
        }
    }

    /// The current revision.
    async fn revision(&self) -> Revision {
        self.coordinator.members().await.unwrap().revision
    }

    async fn watchers_miss_nothing(&self) {
        let c = &self.coordinator;
        let from = self.revision().await;
        let other = self.site.coordinator();
        let mut tree = Watch::new(&other, Scope::Tree { root: "/conformance/watched".into() }, from);
        let mut expected = Vec::new();
        for number in 0..10 {
            let path = format!("/conformance/watched/{}", number % 3);
            c.set("/conformance/beside", b"", Condition::Always).await.unwrap();
            c.set(&path, number.to_string().as_bytes(), Condition::Always).await.unwrap();
            expected.push(format!("{path}={number}"));
        }
        c.set("/conformance/watched", b"itself", Condition::Always).await.unwrap();
        expected.push("/conformance/watched=itself".into());
        for path in ["", "/0", "/1", "/2"].map(|rest| format!("/conformance/watched{rest}")) {
            c.delete(&path, Condition::Always).await.unwrap();
            expected.push(format!("{path} deleted"));
        }
        c.delete("/conformance/beside", Condition::Always).await.unwrap();
        let (mut seen, mut last) = (Vec::new(), from);
        for _ in 0..expected.len() {
            let Event { revision, happening } = tree.next().await.unwrap();
            assert!(revision > last, "revisions rise");
            last = revision;
            seen.push(describe(&happening));
        }
        assert_eq!(seen, expected);

        let member = c.join(7012, b"").await.unwrap();
        let lease = c.acquire(&member, "/conformance/watched", Duration::from_secs(5)).await.unwrap();
        c.leave(&member).await.unwrap();
        let mut members = Watch::new(&other, Scope::Members, from);
        assert_eq!(members.next().await.unwrap().happening, Happening::Joined { member: 7012, epoch: member.epoch });
        assert_eq!(members.next().await.unwrap().happening, Happening::Left { member: 7012, epoch: member.epoch + 1 });
        let mut leases = Watch::new(&other, Scope::Leases, from);
        let name = lease.name.clone();
        assert_eq!(leases.next().await.unwrap().happening, Happening::Granted { name: name.clone(), member: 7012 });
        assert_eq!(leases.next().await.unwrap().happening, Happening::Ended { name, token: lease.token });
    }

    async fn what_is_forgotten_is_said_to_be(&self) {
        let c = &self.coordinator;
        let from = self.revision().await;
        c.set("/conformance/past", b"1", Condition::Always).await.unwrap();
        self.site.forget_history().await;
        let gone = c.changes(&Scope::All, from).await;
        let Err(CoordError::Compacted { compacted }) = gone else { panic!("{gone:?}") };
        assert!(compacted > from);
        let now = self.revision().await;
        c.delete("/conformance/past", Condition::Always).await.unwrap();
        let changes = c.changes(&Scope::Tree { root: "/conformance".into() }, now).await.unwrap();
        assert_eq!(changes.events.len(), 1, "what comes after can be watched");
    }
}
