//! The binary as a user meets it: its own process, its own output.

#![allow(clippy::print_stdout, reason = "a test says why it skips")]
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

// Limits of every algorithm tried at given times.
mod check;
// What all commands have in common: exit codes, units, names, broken pipes, manual pages.
mod command_line;
// Which configuration is used when none is named.
mod config_files;
// Durable counts: kill -9, full disks, usage for bills.
mod durable;
// The demos over real HTTP with real processes.
mod demo;
// Every command that a starting process prints is run as it stands there.
mod hints;
// An upstream that is not ours judges real proxies.
mod judge;
// Profiles shown, listed and tried out.
mod profile;
// The proxy and the fake upstream as own processes.
mod proxy;
// Queues of a served file, over HTTP and from the command line.
mod queue;
// Proxies on one token that do not know of each other.
mod paced;
// `serve` as its own process, and `validate`.
mod serve;
// In place of envoyproxy/ratelimit: its environment, ports, files, metrics.
mod ratelimit;
// Snapshots that are bad, resized or ahead, and memory that is full.
mod snapshot;
// Quotas of one's own in their file: kill -9, damage, full disks.
mod own_quotas;
// Real SDKs against the fake upstream.
mod sdks;
// Budgets of language models with real SDKs and a fleet of proxies.
mod model_budgets;
// What `simulate` prints and writes.
mod simulate;
// Honest clients while others attack, for a minute or ten.
mod soak;
// Runs the binary within a bound.
mod tool;
// Which troubles a real service tells: clocks, snapshots, stores, its end.
mod troubles;
// The clients for other languages.
mod clients;
// The dashboard in a real browser.
mod dashboard;
// Runs what `scripts/install-face` installs.
mod face;
// An outage of the store: log, metrics and the alerts that are shipped.
mod outage;
// What ships beside the binary.
mod packaging;
// The documents and what they show.
mod book;
// Pictures that the documents show.
mod pictures;
// Rules for the tree itself.
mod tidy;
// `top` in a pipe and on terminals.
mod top;
