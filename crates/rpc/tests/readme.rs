//! The README shows the examples as they are.

use std::fs;

#[test]
fn the_readme_shows_the_examples() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = fs::read_to_string(format!("{root}/README.md")).unwrap();
    let shown: Vec<&str> = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let examples = ["rpc/examples/echo_server", "rpc/examples/echo_client", "kv/examples/client"];
    assert_eq!(shown.len(), examples.len());
    for (block, example) in shown.iter().zip(examples) {
        let code = fs::read_to_string(format!("{root}/crates/{example}.rs")).unwrap();
        assert!(code.contains(block), "the README's code differs from {example}.rs:\n{block}");
    }
}
