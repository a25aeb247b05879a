//! Statistics of a setting's requests (thesis, section 3.1.2), without a simulation.

use super::random::Random;
use super::workload::{KeyDraws, SizeDraws};
use super::{Setting, SettingError};

/// Statistics of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadFacts {
    /// Share of requests with more than one key.
    pub several: f64,
    /// Mean number of keys.
    pub mean: f64,
    /// Maximum number of keys in a request.
    pub most: u32,
    /// Requests for the most popular key.
    pub hottest: u32,
    /// Share of the requested keys that are requested only once.
    pub once: f64,
}

/// Draws the requests of a setting and counts them. Takes 4 bytes for each key of the setting.
///
/// # Errors
/// [`SettingError`].
pub fn load_facts(setting: &Setting) -> Result<LoadFacts, SettingError> {
    setting.validate()?;
    let (sizes, keys) = (SizeDraws::new(setting.sizes), KeyDraws::new(setting.keys));
    let mut random = Random::new(setting.seed, 0);
    let trace = setting.trace.as_deref();
    let mut asked = vec![0u32; trace.map_or(keys.count(), |trace| u64::from(trace.distinct())) as usize];
    let (mut several, mut total, mut most) = (0u32, 0u64, 0);
    for number in 0..setting.requests {
        let recorded = trace.map(|trace| trace.request(number));
        let size = recorded.map_or_else(|| sizes.draw(&mut random), |keys| keys.len() as u32);
        several += u32::from(size > 1);
        total += u64::from(size);
        most = size.max(most);
        match recorded {
            Some(keys) => keys.iter().for_each(|key| asked[*key as usize] += 1),
            None => (0..size).for_each(|_| asked[keys.draw(&mut random) as usize] += 1),
        }
    }
    let known = asked.iter().filter(|times| **times > 0).count();
    let once = asked.iter().filter(|times| **times == 1).count();
    Ok(LoadFacts {
        several: f64::from(several) / f64::from(setting.requests),
        mean: total as f64 / f64::from(setting.requests),
        most,
        hottest: asked.into_iter().max().unwrap_or(0),
        once: once as f64 / known.max(1) as f64,
    })
}
