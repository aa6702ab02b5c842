//! Structured logs: lines for people or for machines, as much as `RUST_LOG` says.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::ConfigError;

/// Starts to log to standard error, from `info` on; does nothing if somebody else has.
pub fn start(as_json: bool) {
    start_at("info", as_json);
}

/// The same, from `level` on.
pub fn start_at(level: &str, as_json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // Whoever asks for everything must not find the messages of clients in it, with their tokens.
    let filter = filter.add_directive("h2=info".parse().expect("a directive"));
    let colours = std::io::stderr().is_terminal();
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // Fails only if a subscriber is installed already, which then logs.
    let _ = if as_json { builder.json().try_init() } else { builder.try_init() };
}

/// Tells what configuration files say that has no effect.
pub fn note(notes: &[ConfigError]) {
    notes.iter().for_each(|note| tracing::warn!("{note}"));
}

/// The beginning of what strangers wrote, as ASCII without control characters.
pub(crate) fn escaped(text: &[u8]) -> String {
    const LENGTH_MAX: usize = 256;
    text[..text.len().min(LENGTH_MAX)].escape_ascii().to_string()
}
