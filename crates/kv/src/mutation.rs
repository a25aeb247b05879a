//! Bugs on purpose, to see that the fault hunt finds them; as those of [`dunlin_rpc::mutation`]. They exist only with the feature `mutations`.

dunlin_rpc::mutations! {
    /// A client tries a write again after its session ended, though the first may have been executed.
    WriteTriedAgain,
    /// A value is stored though the item was changed since its token was given: an update is lost.
    TokenNotCompared,
}
