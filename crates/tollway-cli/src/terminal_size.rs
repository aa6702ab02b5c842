//! How much fits on the terminal that standard output is.

use rustix::termios::tcgetwinsize;

/// How much fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size now; `None` if standard output is no terminal, or one that does not know.
pub(crate) fn terminal_size() -> Option<Size> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 0).then_some(Size { columns, rows })
}
