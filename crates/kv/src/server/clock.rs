//! The time of partitions.
//!
//! It starts at the wall clock's value when the process first asks, and then follows the boot-time clock, which runs
//! while the machine sleeps and cannot be set. So a step of the wall clock neither expires items nor keeps them alive
//! (as in memcached). The difference to the wall clock is used to convert the times of day of clients and of snapshots.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_store::{Moment, UnixSeconds};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Longer than any server runs: 30 years.
const PERIOD_MAX: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns ticks from now on, one in each period. Ticks missed while the process was stopped are skipped.
pub(super) fn ticks(period: Duration) -> Interval {
    // A time that the clock cannot represent would panic.
    ticks_from(Instant::now(), period.min(PERIOD_MAX))
}

fn ticks_from(start: Instant, period: Duration) -> Interval {
    let mut ticks = interval_at(start, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Two clocks, read together.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The wall clock, since 1970.
    wall: Duration,
    /// The boot-time clock, since the machine was started.
    boot: Duration,
}

impl Reading {
    fn now() -> Reading {
        let boot = clock_gettime(ClockId::Boottime);
        let seconds = Duration::from_secs(boot.tv_sec.try_into().unwrap_or(0));
        Reading {
            wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            boot: seconds + Duration::from_nanos(boot.tv_nsec.try_into().unwrap_or(0)),
        }
    }

    /// Returns the moment of this reading, if the time began at `began`.
    fn since(self, began: Reading) -> Moment {
        let now = began.wall.saturating_add(self.boot.saturating_sub(began.boot));
        let difference = self.wall.as_millis() as i128 - now.as_millis() as i128;
        // Rounded to seconds, so that a reading between two seconds makes no difference. Valid until 2106.
        let wall_ahead = (difference + 500).div_euclid(1000);
        Moment {
            now: now.as_secs().try_into().unwrap_or(UnixSeconds::MAX),
            wall_ahead: wall_ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        }
    }
}

/// Returns the time, and how far the wall clock is ahead of it.
pub(crate) fn moment() -> Moment {
    static BEGAN: OnceLock<Reading> = OnceLock::new();
    let reading = Reading::now();
    reading.since(*BEGAN.get_or_init(|| reading))
}

/// Returns the time alone.
pub(super) fn unix_seconds() -> UnixSeconds {
    moment().now
}

#[cfg(test)]
mod tests {
    use super::super::config::TICK_DEFAULT;
    use super::*;

    fn reading(wall: f64, boot: f64) -> Reading {
        Reading { wall: Duration::from_secs_f64(wall), boot: Duration::from_secs_f64(boot) }
    }

    #[test]
    fn a_step_of_the_wall_clock_is_no_time_that_passes() {
        let began = reading(1_800_000_000.9, 50.0);
        let moment = |wall, boot| reading(wall, boot).since(began);
        assert_eq!(moment(1_800_000_000.9, 50.0), Moment { now: 1_800_000_000, wall_ahead: 0 });
        assert_eq!(moment(1_800_000_010.9, 60.0), Moment { now: 1_800_000_010, wall_ahead: 0 });
        // The wall clock steps an hour back and a day ahead, ten seconds after the start; and a clock that started in
        // 1970.
        assert_eq!(moment(1_799_996_410.9, 60.0), Moment { now: 1_800_000_010, wall_ahead: -3600 });
        assert_eq!(moment(1_800_086_410.9, 60.0), Moment { now: 1_800_000_010, wall_ahead: 86_400 });
        let unset = reading(5.0, 5.0);
        assert_eq!(reading(1_800_000_000.0, 65.0).since(unset), Moment { now: 65, wall_ahead: 1_799_999_935 });
        assert_eq!(reading(0.0, 60.0).since(began).wall_ahead, -1_800_000_011);
    }

    #[test]
    fn a_clock_that_is_slewed_changes_a_difference_by_whole_seconds() {
        let began = reading(1_000.0, 0.0);
        for (drift, ahead) in [(0.4, 0), (-0.4, 0), (0.6, 1), (-0.6, -1), (1.4, 1)] {
            assert_eq!(reading(1_100.0 + drift, 100.0).since(began), Moment { now: 1_100, wall_ahead: ahead });
        }
    }

    /// A process that was stopped does not catch up on missed ticks.
    #[test]
    fn missed_ticks_are_left_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut ticks = ticks_from(Instant::now().checked_sub(TICK_DEFAULT * 100).unwrap(), TICK_DEFAULT);
            ticks.tick().await;
            let next = std::pin::pin!(ticks.tick());
            assert!(futures::poll!(next).is_pending());
        });
    }

    #[test]
    fn the_clocks_of_this_machine_agree_with_themselves() {
        let (first, second) = (moment(), moment());
        assert!(second.now >= first.now && first.now > 1_700_000_000);
    }
}
