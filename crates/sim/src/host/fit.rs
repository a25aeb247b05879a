//! Fitting a [`CostModel`] to measured times.

use super::cost::CostModel;
use crate::error::SimError;

/// How long one end of a real transport was busy with a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstTime {
    /// Packets of the burst.
    pub packets: u32,
    /// Bytes of each.
    pub bytes: u32,
    /// CPU time for all of it, in nanoseconds.
    pub nanos: f64,
}

impl CostModel {
    /// Returns the model whose times are closest to the measured ones, by the mean square of relative errors: a cost
    /// for each burst, each packet and each byte, none of them negative.
    ///
    /// If only a whole round trip can be measured, pass half of it as sent and half as received: rates depend on their
    /// sum. To tell bytes from packets, and packets from bursts, measurements must differ in them; costs that cannot be
    /// separated are attributed to packets.
    ///
    /// # Errors
    /// [`SimError::BadSetting`] if nothing was measured, or a time is not positive.
    ///
    /// ```
    /// use dunlin_sim::CostModel;
    /// use dunlin_sim::host::BurstTime;
    ///
    /// let time = |packets, bytes, nanos| BurstTime { packets, bytes, nanos };
    /// let sent = [time(1, 64, 70.0), time(32, 64, 1620.0), time(32, 1472, 5000.0)];
    /// let received = [time(1, 64, 80.0), time(32, 64, 1320.0), time(32, 1472, 3700.0)];
    /// let model = CostModel::fit(9.0, &sent, &received)?;
    /// assert_eq!((model.poll_ns, model.tx_burst_ns, model.tx_packet_ns, model.rx_packet_ns), (9, 20, 45, 37));
    /// # Ok::<(), dunlin_sim::SimError>(())
    /// ```
    pub fn fit(poll_nanos: f64, sent: &[BurstTime], received: &[BurstTime]) -> Result<CostModel, SimError> {
        if !(poll_nanos >= 0.0 && poll_nanos.is_finite()) {
            return Err(SimError::setting("poll_nanos", format!("{poll_nanos} is not a time")));
        }
        let [tx_burst, tx_packet, tx_byte] = fit("sent", sent)?;
        let [rx_burst, rx_packet, rx_byte] = fit("received", received)?;
        let whole = |value: f64| value.round() as u64;
        Ok(CostModel {
            poll_ns: whole(poll_nanos),
            rx_burst_ns: whole(rx_burst),
            rx_packet_ns: whole(rx_packet),
            rx_byte_ps: whole(rx_byte * 1000.0),
            tx_burst_ns: whole(tx_burst),
            tx_packet_ns: whole(tx_packet),
            tx_byte_ps: whole(tx_byte * 1000.0),
        })
    }
}

/// Nanoseconds for a burst, a packet and a byte.
type Costs = [f64; 3];

/// Least squares without negative costs: the best of all solutions in which some costs are zero, preferring fewer costs
/// if that is as good.
fn fit(name: &str, times: &[BurstTime]) -> Result<Costs, SimError> {
    if let Some(bad) = times.iter().find(|time| !(time.nanos > 0.0 && time.nanos.is_finite() && time.packets > 0)) {
        return Err(SimError::setting(name, format!("{bad:?} is not a time of a burst")));
    }
    const PACKET: u8 = 0b010;
    const SUBSETS: [u8; 7] = [PACKET, 0b001, 0b100, 0b011, 0b110, 0b101, 0b111];
    let mut best: Option<(f64, Costs)> = None;
    for subset in SUBSETS {
        let Some(costs) = solve(times, subset).filter(|costs| costs.iter().all(|cost| *cost >= 0.0)) else { continue };
        let error = square_error(times, &costs);
        // A further cost must improve the fit by more than rounding does.
        if best.is_none_or(|(least, _)| error < least * (1.0 - 1e-6) - 1e-12) {
            best = Some((error, costs));
        }
    }
    best.map(|(_, costs)| costs).ok_or_else(|| SimError::setting(name, "there are no measurements"))
}

/// The components of a burst's time.
fn parts(time: &BurstTime) -> Costs {
    let packets = f64::from(time.packets);
    [1.0, packets, packets * f64::from(time.bytes)]
}

fn square_error(times: &[BurstTime], costs: &Costs) -> f64 {
    let error = |time: &BurstTime| {
        let predicted: f64 = parts(time).iter().zip(costs).map(|(part, cost)| part * cost).sum();
        (predicted / time.nanos - 1.0).powi(2)
    };
    times.iter().map(error).sum()
}

/// Solves the normal equations for the costs in `subset`, the others being zero. `None` if the times do not determine
/// them.
fn solve(times: &[BurstTime], subset: u8) -> Option<Costs> {
    let chosen: Vec<usize> = (0..3).filter(|i| subset >> i & 1 == 1).collect();
    let n = chosen.len();
    // The last column is the right-hand side.
    let mut matrix = [[0.0; 4]; 3];
    for time in times {
        let relative = parts(time).map(|part| part / time.nanos);
        for (row, i) in chosen.iter().enumerate() {
            for (column, j) in chosen.iter().enumerate() {
                matrix[row][column] += relative[*i] * relative[*j];
            }
            matrix[row][3] += relative[*i];
        }
    }
    for step in 0..n {
        let pivot = matrix[step][step];
        // The pivot is compared with its original value to see whether the system determines it: the matrix is positive
        // semidefinite, and its entries are of similar magnitude.
        let original: f64 = times.iter().map(|time| (parts(time)[chosen[step]] / time.nanos).powi(2)).sum();
        if pivot <= original * 1e-9 {
            return None;
        }
        for row in (0..n).filter(|row| *row != step) {
            let factor = matrix[row][step] / pivot;
            let eliminated = matrix[step];
            matrix[row].iter_mut().zip(eliminated).for_each(|(entry, other)| *entry -= factor * other);
        }
    }
    let mut costs = [0.0; 3];
    for (row, i) in chosen.iter().enumerate() {
        costs[*i] = matrix[row][3] / matrix[row][row];
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(costs: Costs, shapes: &[(u32, u32)]) -> Vec<BurstTime> {
        let nanos = |time: &BurstTime| parts(time).iter().zip(costs).map(|(part, cost)| part * cost).sum();
        let burst = |(packets, bytes): &(u32, u32)| BurstTime { packets: *packets, bytes: *bytes, nanos: 0.0 };
        shapes.iter().map(burst).map(|time| BurstTime { nanos: nanos(&time), ..time }).collect()
    }

    const SHAPES: [(u32, u32); 5] = [(1, 32), (8, 32), (32, 32), (1, 1472), (32, 1472)];

    #[test]
    fn exact_times_give_back_their_costs() {
        for costs in [[100.0, 40.0, 0.05], [0.0, 40.0, 0.0], [300.0, 0.0, 0.2], [0.0, 7.0, 1.0]] {
            let fitted = fit("sent", &times(costs, &SHAPES)).unwrap();
            assert!(
                fitted.iter().zip(costs).all(|(a, b)| (a - b).abs() < 1e-6 * (1.0 + b)),
                "{fitted:?}, not {costs:?}"
            );
        }
    }

    #[test]
    fn noise_gives_no_negative_costs() {
        let mut random = dunlin_net::random::Random::new(1);
        for _ in 0..100 {
            let mut times = times([5.0, 50.0, 0.01], &SHAPES);
            times.iter_mut().for_each(|time| time.nanos *= random.between(80, 120) as f64 / 100.0);
            let costs = fit("sent", &times).unwrap();
            assert!(costs.iter().all(|cost| *cost >= 0.0) && square_error(&times, &costs) < 0.3, "{costs:?}");
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_put_down_to_packets() {
        assert_eq!(fit("sent", &times([0.0, 60.0, 0.0], &[(1, 32)])).unwrap(), [0.0, 60.0, 0.0]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(CostModel::fit(1.0, &[], &times([1.0; 3], &SHAPES)).is_err());
        let zero = [BurstTime { packets: 1, bytes: 32, nanos: 0.0 }];
        assert!(CostModel::fit(1.0, &zero, &zero).is_err());
        assert!(CostModel::fit(f64::NAN, &times([1.0; 3], &SHAPES), &times([1.0; 3], &SHAPES)).is_err());
    }
}
