//! Timers of the application.

use std::task::Waker;

use super::Core;
use super::timers::token_of_alarm;
use crate::timer::TimerId;

/// The index of an alarm. Only its owner frees it, so it needs no generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AlarmId(u32);

/// An alarm that was set.
pub(crate) struct Alarm {
    timer: TimerId,
    has_fired: bool,
    waker: Option<Waker>,
}

impl Core {
    /// Sets an alarm.
    pub fn set_alarm(&mut self, at: u64) -> AlarmId {
        let index = self.free_alarms.pop().unwrap_or(self.alarms.len() as u32);
        let timer = self.wheel.create(token_of_alarm(index));
        self.wheel.arm(timer, at);
        let alarm = Alarm { timer, has_fired: false, waker: None };
        match self.alarms.get_mut(index as usize) {
            Some(place) => *place = alarm,
            None => self.alarms.push(alarm),
        }
        AlarmId(index)
    }

    /// Whether it has fired.
    pub fn alarm_fired(&self, id: AlarmId) -> bool {
        self.alarms[id.0 as usize].has_fired
    }

    /// Wakes `waker` when it fires; returns the waker it replaces.
    pub fn watch_alarm(&mut self, id: AlarmId, waker: &Waker) -> Option<Waker> {
        match &mut self.alarms[id.0 as usize].waker {
            Some(before) if before.will_wake(waker) => None,
            place => place.replace(waker.clone()),
        }
    }

    /// Frees an alarm, and returns its waker.
    pub fn forget_alarm(&mut self, id: AlarmId) -> Option<Waker> {
        let alarm = &mut self.alarms[id.0 as usize];
        let (timer, waker) = (alarm.timer, alarm.waker.take());
        self.wheel.remove(timer);
        self.free_alarms.push(id.0);
        waker
    }

    /// Its timer fired.
    pub(super) fn on_alarm(&mut self, index: u32) {
        let alarm = &mut self.alarms[index as usize];
        alarm.has_fired = true;
        self.woken.extend(alarm.waker.take());
    }
}
