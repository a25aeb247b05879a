//! Kinds of operations, and their outcomes.

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
            /// All of them, in display order.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Returns its name in labels and reports.
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
        /// Reads an item and sets its expiry.
        GetAndTouch = "gat",
        /// Stores always.
        Set = "set",
        /// Stores if the key has no item.
        Add = "add",
        /// Stores if the key has an item.
        Replace = "replace",
        /// Stores if the item is unchanged.
        CompareAndSwap = "cas",
        /// Appends bytes to a value.
        Append = "append",
        /// Prepends bytes to a value.
        Prepend = "prepend",
        /// Adds to a number.
        Increment = "incr",
        /// Subtracts from a number.
        Decrement = "decr",
        /// Sets an item's expiry or marks.
        Touch = "touch",
        /// Deletes an item.
        Delete = "delete",
        /// Deletes everything. Counted once per core.
        Flush = "flush",
    }
}

named! {
    /// The outcome of an operation.
    Outcome {
        /// Done: the item was found, or is stored.
        Hit = "hit",
        /// The item does not exist, and the operation needs one.
        Miss = "miss",
        /// The item exists but must not, or has changed since its token was returned.
        Conflict = "conflict",
        /// Rejected: too large, no memory, not a number, or an invalid key.
        Refused = "refused",
    }
}

impl Outcome {
    /// Returns the outcome of an operation that may be rejected.
    pub fn of<T>(result: &Result<T, Refused>) -> Outcome {
        match result {
            Ok(_) => Outcome::Hit,
            Err(Refused::NotFound) => Outcome::Miss,
            Err(Refused::Exists | Refused::Changed) => Outcome::Conflict,
            Err(_) => Outcome::Refused,
        }
    }

    /// Returns the outcome of an operation that finds an item or not.
    pub fn found(is_found: bool) -> Outcome {
        if is_found { Outcome::Hit } else { Outcome::Miss }
    }
}
