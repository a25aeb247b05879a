//! Each target holds for its first inputs, and for variants that a number draws: `DUNLIN_SEEDS` draws more of them.

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use dunlin_fuzz::{Check, TARGETS};
use dunlin_net::random::Random;

/// Variants of each target, without `DUNLIN_SEEDS`.
const VARIANTS: u64 = 10_000;
/// Bytes of a variant at most: those that `fuzz/run` allows.
const LEN_MAX: usize = 8192;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target)
}

/// The first inputs of a target in the order of their names. Some targets begin with nothing.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder(target)) else { return vec![Vec::new()] };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no input in {}", folder(target).display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn below(random: &mut Random, end: usize) -> usize {
    (random.next() % end.max(1) as u64) as usize
}

/// One of the changes that libFuzzer makes.
fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    let at = below(random, bytes.len() + 1);
    match random.next() % 6 {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.next() as u8),
        2 => bytes.extend((0..below(random, 64)).map(|_| random.next() as u8)),
        3 => {
            let other = &inputs[below(random, inputs.len())];
            bytes.splice(at.., other[below(random, other.len())..].iter().copied());
        }
        kind => {
            let Some(byte) = bytes.get_mut(at) else { return };
            *byte = match (kind, random.next() % 2) {
                (4, _) => *byte ^ (1 << (random.next() % 8)),
                (_, 0) => [0, 1, 0x7f, 0x80, 0xff][below(random, 5)],
                _ => random.next() as u8,
            };
        }
    }
}

/// The variant that `seed` names.
fn variant(inputs: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = inputs[below(&mut random, inputs.len())].clone();
    for _ in 0..=random.next() % 8 {
        change(&mut bytes, inputs, &mut random);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn hold(check: Check, input: &[u8], what: &str) {
    let held = catch_unwind(AssertUnwindSafe(|| check(input))).is_ok();
    assert!(held, "{what} fails, as printed above; its bytes: {}", input.escape_ascii());
}

fn replay(target: &str) {
    let &(_, check) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of this name");
    let inputs = inputs(target);
    for (number, input) in inputs.iter().enumerate() {
        hold(check, input, &format!("{target}: input {number} of its folder, by name,"));
    }
    let variants = env::var("DUNLIN_SEEDS").map_or(VARIANTS, |seeds| seeds.parse().expect("a number"));
    for seed in 0..variants {
        hold(check, &variant(&inputs, seed), &format!("{target}: seed {seed}"));
    }
}

/// A test for each target, so that they share the cores.
macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        #[test]
        fn each_target_is_replayed_and_has_its_binary() {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($target)),*]);
            for name in names {
                let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/targets").join(name);
                assert!(binary.with_extension("rs").exists(), "libFuzzer knows no {name}");
            }
        }
    };
}

replays! { endpoint index index_wire log memcached packet seq snapshot txn }

#[test]
fn the_first_inputs_are_those_that_the_code_writes() {
    for (target, inputs) in dunlin_fuzz::first_inputs() {
        for (name, bytes) in inputs {
            let stored = fs::read(folder(target).join(name)).unwrap_or_default();
            assert!(stored == bytes, "{target}/{name} is old: cargo run -p dunlin-fuzz --example seeds");
        }
    }
}
