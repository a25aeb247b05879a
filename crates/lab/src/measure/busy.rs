//! A neighbour that uses its share of a core, as on any shared machine.

use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::peer::{Control, Role};

/// A process that computes until it is told to stop.
#[derive(Debug, Serialize, Deserialize)]
pub struct BusyNeighbour;

impl Role for BusyNeighbour {
    const NAME: &'static str = "busy neighbour";
    type Ready = ();
    type Output = ();
    type Error = LabError;

    fn run(self, control: &Control<Self>) -> Result<(), LabError> {
        control.ready(());
        let mut x = 1u64;
        while !control.stopping() {
            for _ in 0..10_000 {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
        }
        Ok(())
    }
}
