//! The README and the guides show the examples unchanged.

use std::fs;

/// Documents, and the examples that their Rust blocks are taken from, in order.
const SHOWN: [(&str, &[&str]); 3] = [
    ("README.md", &["rpc/examples/echo_client"]),
    ("docs/rpc.md", &["rpc/examples/echo_server", "rpc/examples/echo_client"]),
    ("docs/kv.md", &["kv/examples/client"]),
];

#[test]
fn the_documents_show_the_examples() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (document, examples) in SHOWN {
        let text = fs::read_to_string(format!("{root}/{document}")).unwrap();
        let shown: Vec<&str> = text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(shown.len(), examples.len(), "{document}");
        for (block, example) in shown.iter().zip(examples) {
            let code = fs::read_to_string(format!("{root}/crates/{example}.rs")).unwrap();
            assert!(code.contains(block), "the code in {document} differs from {example}.rs:\n{block}");
        }
    }
}
