//! Records the commit and the compiler of the build. A report without them cannot be reproduced.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo::rustc-env=DUNLIN_COMMIT={}", commit(&root).unwrap_or_else(|| "unknown".into()));
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!(
        "cargo::rustc-env=DUNLIN_RUSTC={}",
        output(&rustc, &["--version"], &root).unwrap_or_else(|| "unknown".into())
    );
}

/// The commit of the tree, followed by `-dirty` if tracked files differ from it. `None` outside our own repository.
fn commit(root: &Path) -> Option<String> {
    // In a build from a package, an enclosing repository would be a foreign one.
    if !root.join(".git").exists() {
        return None;
    }
    for file in ["HEAD", "index"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", file], root) {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
    }
    println!("cargo::rerun-if-changed={}", root.join("crates").display());
    let hash = output("git", &["rev-parse", "--short=12", "HEAD"], root)?;
    let changes = output("git", &["status", "--porcelain", "--untracked-files=no"], root)?;
    Some(if changes.is_empty() { hash } else { format!("{hash}-dirty") })
}

/// The trimmed output of a command; `None` if it cannot run or fails.
fn output(program: &str, arguments: &[&str], directory: &Path) -> Option<String> {
    // Without this, `git status` may write the index, and so begin this build anew the next time.
    let output =
        Command::new(program).args(arguments).current_dir(directory).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
