//! Figures of Kalia's thesis, chapter 4.

use dunlin_lab::report::PaperFigure;

/// Figure 4.14 of Kalia's thesis (Figure 5 of the guidelines): operations of one server core over the network, 8
/// million items of 16 B + 32 B, 5 % PUT, uniform, requests in batches.
pub(super) const HERD_ONE_CORE: PaperFigure =
    PaperFigure { value: 12.3e6, setup: "HERD, 1 core, CIB 100 Gb InfiniBand" };
