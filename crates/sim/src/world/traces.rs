//! Taking traces.

use super::World;
use crate::engine::time::{NEVER, Picos};
use crate::error::SimError;
use crate::fabric::Port;
use crate::fabric::packet::Transit;
use crate::trace::CapturePoint;
use crate::trace::series::Sampler;

impl World {
    /// Watches ports from now on.
    pub fn watch(&mut self, interval_ns: u64, ports: Vec<Port>) -> Result<(), SimError> {
        let missing = |port: &Port| SimError::setting("ports", format!("the topology has no {port}"));
        let links =
            ports.iter().map(|port| self.shape.link(*port).ok_or_else(|| missing(port))).collect::<Result<_, _>>()?;
        self.sampler = Some(Sampler::new(interval_ns, ports, links, &self.links, self.now())?);
        Ok(())
    }

    /// When the next sample is due.
    #[inline]
    pub(super) fn next_sample(&self) -> Picos {
        self.sampler.as_ref().map_or(NEVER, |sampler| sampler.next)
    }

    /// Takes the samples that are due next.
    pub(super) fn sample(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            sampler.sample(&self.links);
        }
    }

    /// Records a packet that is at a point.
    #[inline]
    pub(super) fn capture(&mut self, point: CapturePoint, transit: Transit) {
        if self.capture.is_some() {
            self.record(point, transit);
        }
    }

    #[cold]
    fn record(&mut self, point: CapturePoint, transit: Transit) {
        let packet = &self.packets[transit.number()];
        let from = &self.threads[packet.from as usize];
        let (from, to) = ((from.host, from.number), (transit.to_host(), transit.to_thread()));
        if let Some(capture) = self.capture.as_mut().filter(|capture| capture.point == point) {
            capture.record(self.now.get(), from, to, &packet.buffer[..transit.len() as usize]);
        }
    }
}
