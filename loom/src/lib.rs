//! The memory orders of the protocol of versions, in all executions that they allow: models of nodes for loom.
//!
//! The files of the index are compiled here with loom's atomics. Words of real nodes cannot be loom's: they are plain
//! memory. So a model has nodes of a few words, and reads and writes them as the index does. `docs/index.md` has the
//! protocol.
//!
//! Each order that the models need is also weakened, and then a model must fail. The order of the compare-and-swap of
//! `lock` is not among them, because a thread has loaded the control word with acquire order before it locks the node.
#![cfg(test)]

use std::panic::catch_unwind;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

#[allow(dead_code)]
#[path = "../../crates/index/src/node/control.rs"]
mod control;
#[path = "../../crates/index/src/node/version.rs"]
mod version;

use control::{Control, Shape};

#[derive(Debug)]
struct Conflict;

/// The protocol, of which others weaken a part.
trait Protocol: 'static {
    fn load(word: &AtomicU64) -> Control {
        version::load(word)
    }

    fn check(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
        version::check(word, control)
    }

    fn lock(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
        version::lock(word, control)
    }

    fn unlock(word: &AtomicU64, control: Control) {
        version::unlock(word, control);
    }

    /// The second comparison of a descent.
    fn check_again(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
        version::check(word, control)
    }
}

/// A node with so many words beside the control word.
struct Node<const WORDS: usize> {
    control: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Node<WORDS> {
    fn new(words: [u64; WORDS]) -> Node<WORDS> {
        Node { control: AtomicU64::new(unlocked(0).0), words: words.map(AtomicU64::new) }
    }

    fn stable<P: Protocol>(&self) -> Result<Control, Conflict> {
        let control = P::load(&self.control);
        if control.is_plain() { Ok(control) } else { Err(Conflict) }
    }

    fn read(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    fn store(&self, at: usize, word: u64) {
        self.words[at].store(word, Ordering::Relaxed);
    }

    /// Makes a node that is not shared yet, in memory that another one had.
    fn create<P: Protocol>(&self, word: u64) {
        self.control.store(Control::new(Shape::Leaf4, 0).0, Ordering::Relaxed);
        self.store(0, word);
        P::unlock(&self.control, unlocked(1));
    }
}

/// The control word of a node that has changed so often.
fn unlocked(changes: u64) -> Control {
    (0..changes).fold(Control::new(Shape::Leaf4, 0).unlocked(), |control, _| control.next_version())
}

fn retry<T>(mut attempt: impl FnMut() -> Result<T, Conflict>) -> T {
    loop {
        if let Ok(done) = attempt() {
            return done;
        }
        thread::yield_now();
    }
}

// A writer that is alone knows the control word and does not load it: loom tries the writer's store before a reader's
// load only if that load is the last access to the word before the store.

/// What a reader accepts belongs to one version, and to the one that it has read.
fn a_reader_sees_one_version<P: Protocol>() {
    loom::model(|| {
        let node = Arc::new(Node::new([0, 0]));
        let writer = {
            let node = node.clone();
            thread::spawn(move || {
                for number in [1, 2] {
                    P::lock(&node.control, unlocked(number - 1)).expect("nobody else locks it");
                    node.store(0, number);
                    node.store(1, number);
                    P::unlock(&node.control, unlocked(number));
                }
            })
        };
        let seen = node.stable::<P>().and_then(|control| {
            let words = [node.read(0), node.read(1)];
            P::check(&node.control, control).map(|()| (control, words))
        });
        if let Ok((control, words)) = seen {
            assert!([0, 1, 2].iter().any(|number| control == unlocked(*number) && words == [*number; 2]));
        }
        writer.join().expect("it ended");
    });
}

/// What a writer has read before it locks is still true.
fn writers_lose_nothing<P: Protocol>() {
    loom::model(|| {
        let node = Arc::new(Node::new([0]));
        let add = |node: &Node<1>| {
            retry(|| {
                let control = node.stable::<P>()?;
                let word = node.read(0);
                P::lock(&node.control, control)?;
                node.store(0, word + 1);
                P::unlock(&node.control, control.next_version());
                Ok(())
            });
        };
        let other = {
            let node = node.clone();
            thread::spawn(move || add(&node))
        };
        add(&node);
        other.join().expect("it ended");
        assert_eq!(node.read(0), 2);
    });
}

/// A reader that descends finds what is there all the time, while it moves to a new leaf, to which the holder
/// refers from then on.
fn a_descent_misses_nothing<P: Protocol>() {
    const ITEM: u64 = 7;
    loom::model(|| {
        let holder = Arc::new(Node::new([0]));
        let leaves = Arc::new([Node::new([ITEM]), Node::new([0])]);
        let writer = {
            let (holder, leaves) = (holder.clone(), leaves.clone());
            thread::spawn(move || {
                let [left, right] = &*leaves;
                P::lock(&holder.control, unlocked(0)).expect("nobody else locks it");
                P::lock(&left.control, unlocked(0)).expect("nobody else locks it");
                right.create::<P>(ITEM);
                left.store(0, 0);
                holder.store(0, 1);
                P::unlock(&left.control, unlocked(1));
                P::unlock(&holder.control, unlocked(1));
            })
        };
        let descend = || {
            let above = holder.stable::<P>()?;
            let leaf = holder.read(0);
            P::check(&holder.control, above)?;
            let leaf = &leaves[leaf as usize];
            let control = leaf.stable::<P>()?;
            P::check_again(&holder.control, above)?;
            let item = leaf.read(0);
            P::check(&leaf.control, control).map(|()| item)
        };
        if let Ok(item) = descend() {
            assert_eq!(item, ITEM);
        }
        writer.join().expect("it ended");
    });
}

/// The protocol as it is.
struct Real;
impl Protocol for Real {}

#[test]
fn the_orders_are_strong_enough() {
    a_reader_sees_one_version::<Real>();
    writers_lose_nothing::<Real>();
    a_descent_misses_nothing::<Real>();
}

/// Whether a model fails. In a thread of its own, since a model that fails leaves its state behind.
fn fails(model: fn()) -> bool {
    std::thread::spawn(move || catch_unwind(model).is_err()).join().expect("the panic was caught")
}

#[test]
fn loading_a_control_word_needs_acquire_order() {
    struct Weak;
    impl Protocol for Weak {
        fn load(word: &AtomicU64) -> Control {
            Control(word.load(Ordering::Relaxed))
        }
    }
    assert!(fails(a_reader_sees_one_version::<Weak>));
    assert!(fails(writers_lose_nothing::<Weak>));
    assert!(fails(a_descent_misses_nothing::<Weak>));
}

#[test]
fn comparing_it_needs_a_fence() {
    struct Weak;
    impl Protocol for Weak {
        fn check(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
            if word.load(Ordering::Relaxed) == control.0 { Ok(()) } else { Err(Conflict) }
        }
    }
    assert!(fails(a_reader_sees_one_version::<Weak>));
}

#[test]
fn locking_needs_a_fence() {
    struct Weak;
    impl Protocol for Weak {
        fn lock(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
            let exchange = word.compare_exchange(control.0, control.locked().0, Ordering::Acquire, Ordering::Relaxed);
            exchange.map(|_| ()).map_err(|_| Conflict)
        }
    }
    assert!(fails(a_reader_sees_one_version::<Weak>));
}

#[test]
fn unlocking_needs_release_order() {
    struct Weak;
    impl Protocol for Weak {
        fn unlock(word: &AtomicU64, control: Control) {
            word.store(control.0, Ordering::Relaxed);
        }
    }
    assert!(fails(a_reader_sees_one_version::<Weak>));
    assert!(fails(writers_lose_nothing::<Weak>));
    assert!(fails(a_descent_misses_nothing::<Weak>));
}

#[test]
fn a_descent_needs_its_second_comparison() {
    struct Weak;
    impl Protocol for Weak {
        fn check_again(_: &AtomicU64, _: Control) -> Result<(), Conflict> {
            Ok(())
        }
    }
    assert!(fails(a_descent_misses_nothing::<Weak>));
}
