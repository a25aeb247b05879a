//! Deliberate bugs, to check that the fault hunt finds them; like those of [`dunlin_rpc::mutation`]. They exist only
//! with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A client retries a write after its session ended, although the first attempt may have been executed.
    WriteTriedAgain,
    /// A value is stored although the item has changed since its token was returned: an update is lost.
    TokenNotCompared,
}
