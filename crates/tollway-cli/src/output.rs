//! Standard output, whose reader may leave: `tollway … | head` is no failure.
//!
//! A process learns by a broken pipe that nobody reads any more. Other pipes break, too, those to
//! stores for example, so this one is told from them by a mark in the error.

use std::io::{self, StdoutLock, Write};

use anyhow::{Context as _, Result};

tollway_core::plain_error! {
    /// That nobody reads standard output or standard error any more.
    struct ReaderLeft = "nobody reads the output any more";
}

/// Standard output.
pub(crate) struct Output(StdoutLock<'static>);

/// Standard output, until it is dropped.
pub(crate) fn output() -> Output {
    Output(io::stdout().lock())
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// The error of a write to standard output or standard error, marked if its reader has left.
pub(crate) fn marked(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return io::Error::new(io::ErrorKind::BrokenPipe, ReaderLeft);
    }
    error
}

/// Writes to standard output at once: whoever reads a pipe waits for it.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = output();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

/// Whether an error means only that nobody reads any more.
pub(crate) fn reader_left(error: &anyhow::Error) -> bool {
    let is_mark = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.is::<ReaderLeft>())
    };
    error.chain().any(is_mark)
}
