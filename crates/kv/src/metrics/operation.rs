//! What is counted: kinds of operations, and what may become of one.

use dunlin_store::Refused;
use serde::{Deserialize, Serialize};

/// Declares the kinds with their names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All of them, in the order in which they are shown.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Its name, as in labels and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }
    };
}

named! {
    /// A kind of operation on one key. A multi-get of 20 keys counts as 20 gets.
    Operation {
        /// Reads an item.
        Get = "get",
        /// Reads an item and gives it another expiry.
        GetAndTouch = "gat",
        /// Stores in any case.
        Set = "set",
        /// Stores if there is no such item.
        Add = "add",
        /// Stores if there is one.
        Replace = "replace",
        /// Stores if it did not change.
        CompareAndSwap = "cas",
        /// Adds bytes behind a value.
        Append = "append",
        /// Adds bytes in front of a value.
        Prepend = "prepend",
        /// Adds to a number.
        Increment = "incr",
        /// Subtracts from a number.
        Decrement = "decr",
        /// Gives an item another expiry, or other marks.
        Touch = "touch",
        /// Deletes an item.
        Delete = "delete",
        /// Deletes everything. Counted once per core.
        Flush = "flush",
    }
}

named! {
    /// What became of an operation.
    Outcome {
        /// Done: the item was found, or is stored.
        Hit = "hit",
        /// There is no such item, and the operation needs one.
        Miss = "miss",
        /// There is an item where none may be, or it changed since its token was given.
        Conflict = "conflict",
        /// Refused: too large, no memory, not a number, or a key that none can have.
        Refused = "refused",
    }
}

impl Outcome {
    /// Of an operation that may be refused.
    pub fn of<T>(result: &Result<T, Refused>) -> Outcome {
        match result {
            Ok(_) => Outcome::Hit,
            Err(Refused::NotFound) => Outcome::Miss,
            Err(Refused::Exists | Refused::Changed) => Outcome::Conflict,
            Err(_) => Outcome::Refused,
        }
    }

    /// Of an operation that finds an item or does not.
    pub fn found(is_found: bool) -> Outcome {
        if is_found { Outcome::Hit } else { Outcome::Miss }
    }
}
