//! Claims per second on a real server beside the Spectacles script, and twelve requests beside the
//! npm client that uses it.
//!
//! ```text
//! scripts/install-redis && scripts/install-spectacles
//! cargo bench -p tollway-upstream --all-features --bench shared
//! ```
//!
//! What is compared runs in turns, in rounds, on one server; the median of the rounds is told. The
//! CPU time is the server's own account of its process, so it includes reading and answering.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on shall fail")]
#![allow(clippy::print_stdout, reason = "its results go there")]

mod claims;
mod twelve;

use tollway_testkit::servers::Engine;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for engine in Engine::available() {
        runtime.block_on(claims::run(engine));
    }
    runtime.block_on(twelve::run(Engine::Redis));
}
