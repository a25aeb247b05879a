//! Figures of Kalia's thesis, chapter 4.

use dunlin_lab::report::PaperFigure;

/// Figure 4.16 of Kalia's thesis: what one server core of the sequencer gains when answers leave in batches, from 7.0 to
/// 16.6 M/s. Only the gain: the rates themselves are those of 70 clients.
pub(super) const SEQ_BATCHING: PaperFigure =
    PaperFigure { value: 16.6 / 7.0, setup: "1 server core, 70 clients, InfiniBand" };

/// Section 4.7.1 of the thesis: at most one answer of all eight bytes for each client in 2^32 numbers. This many for
/// `clients`.
pub(super) const fn seq_long_answers(clients: usize) -> PaperFigure {
    PaperFigure { value: clients as f64, setup: "at most, in 2^32 numbers" }
}
