//! The members that came and went in each epoch.

use super::PAGE_BYTES_MAX;
use super::state::State;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::types::{EpochChange, Epochs, Happening, Revision};
use crate::wire::Answer;

/// Bytes that an epoch, and each change in it, count in a page.
const EPOCH_BYTES: usize = 20;
const CHANGE_BYTES: usize = 20;

impl State {
    /// Records a membership change and its epoch. All changes of a step share one epoch.
    pub(super) fn note_epoch(&mut self, revision: Revision, happening: &Happening) {
        let Some(epoch) = happening.epoch() else { return };
        match self.epochs.back_mut() {
            Some(last) if last.epoch == epoch => last.changes.push(happening.clone()),
            _ => self.epochs.push_back(EpochChange { epoch, revision, changes: vec![happening.clone()] }),
        }
    }

    /// Forgets the oldest epochs beyond the limit.
    pub(super) fn trim_epochs(&mut self, limits: &Limits) {
        let over = self.epochs.len().saturating_sub(limits.epochs_max);
        self.epochs.drain(..over);
    }

    /// The last discarded epoch.
    fn cut_epoch(&self) -> u64 {
        self.epochs.front().map_or(self.epoch, |first| first.epoch - 1)
    }

    /// A page of the epochs after one.
    pub fn epochs_after(&self, after: u64) -> Result<Answer, CoordError> {
        let cut = self.cut_epoch();
        if after < cut {
            return Err(CoordError::EpochsCut { epoch: cut });
        }
        let (mut epochs, mut bytes) = (Vec::new(), 0);
        let mut has_more = false;
        for change in self.epochs.iter().skip_while(|change| change.epoch <= after) {
            bytes += EPOCH_BYTES + CHANGE_BYTES * change.changes.len();
            has_more = bytes > PAGE_BYTES_MAX && !epochs.is_empty();
            if has_more {
                break;
            }
            epochs.push(change.clone());
        }
        Ok(Answer::Epochs { epochs: Epochs { epochs, has_more } })
    }

    /// Forgets the epochs up to one, which has begun.
    pub fn cut_epochs(&mut self, up_to: u64) -> Result<Answer, CoordError> {
        if up_to > self.epoch {
            return Err(CoordError::EpochAhead { asked: up_to, epoch: self.epoch });
        }
        let up_to = up_to + u64::from(is_planted(Mutation::NextEpochCut));
        self.epochs.retain(|change| change.epoch > up_to);
        Ok(Answer::Done { revision: self.revision })
    }
}
