//! Writes the programs of the documents, blocks of Rust with `file=NAME.rs`, to files that
//! `tests/it` includes: a reader's copy and the tests' copy cannot differ.

use std::path::Path;
use std::{env, fs};

/// Documents whose programs the tests run. Other blocks of Rust are doctests (`src/lib.rs`).
const DOCUMENTS: [&str; 4] =
    ["README.md", "docs/how-to/rust.md", "docs/how-to/testing.md", "docs/how-to/plans.md"];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = env::var_os("OUT_DIR").expect("cargo sets it for build scripts");
    for document in DOCUMENTS {
        let path = root.join(document);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("a document of the list");
        for part in text.split("\n```rust file=").skip(1) {
            let (name, rest) = part.split_once('\n').expect("the info string ends");
            let (program, _) = rest.split_once("\n```").expect("the block ends");
            let program: String = program.lines().map(with_free_ports).collect();
            fs::write(Path::new(&out).join(name), program).expect("cargo's folder is writable");
        }
    }
}

/// The line with its address on loopback looked up when it runs. Documents name default ports,
/// which another program of this machine may have.
fn with_free_ports(line: &str) -> String {
    let Some(at) = line.find("127.0.0.1:") else { return format!("{line}\n") };
    let start = line[..at].rfind('"').expect("addresses stand in texts");
    let end = at + line[at..].find('"').expect("the text ends") + 1;
    let (before, text, after) = (&line[..start], &line[start..end], &line[end..]);
    format!("{before}crate::programs::with_free_ports({text}){after}\n")
}
