//! The terminal that a view fills: its size, its keys, and the way back to how it was.

use std::env;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::thread;

use anyhow::{Context as _, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::sync::mpsc;

use crate::output::output;
use crate::terminal_size::{Size, terminal_size};

/// Where the terminal does not know its size.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// The other screen, so that what was there comes back; no cursor on it, and no line that goes on
/// in the next one.
const TAKE: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const GIVE_BACK: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    Quit,
    Pause,
    NextSort,
    Denied,
    Allowed,
}

/// Whether standard output is a terminal that a view can fill.
pub(super) fn is_one() -> bool {
    std::io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// A terminal that is taken until this is dropped.
pub(super) struct Screen {
    before: Option<Termios>,
    has_colours: bool,
}

impl Screen {
    pub(super) fn take() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            // Keys come at once and are not shown. Ctrl-C still interrupts; Ctrl-Z would leave the
            // shell on the other screen.
            modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
            modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(std::io::stdin(), OptionalActions::Now, &modes).context("the terminal")?;
        }
        let has_colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Self { before, has_colours };
        let mut out = output();
        out.write_all(TAKE).and_then(|()| out.flush())?;
        Ok(screen)
    }

    /// How large it is now.
    pub(super) fn size(&self) -> Size {
        terminal_size().unwrap_or(USUAL)
    }

    /// Whether colours are wanted: see no-color.org.
    pub(super) const fn has_colours(&self) -> bool {
        self.has_colours
    }

    /// Shows lines instead of those before. Each is overwritten in place, so that nothing flickers.
    pub(super) fn show(&mut self, lines: &[String]) -> Result<()> {
        let text = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n"));
        let mut out = output();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Whoever cannot be told has closed the terminal.
        let mut out = output();
        let _ = out.write_all(GIVE_BACK).and_then(|()| out.flush());
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// Keys as they are pressed.
pub(super) struct Keyboard(mpsc::UnboundedReceiver<Pressed>);

impl Keyboard {
    /// Listens to standard input, if that is a terminal, in a thread that ends with the process.
    pub(super) fn listen() -> Self {
        let (pressed, heard) = mpsc::unbounded_channel();
        if std::io::stdin().is_terminal() {
            thread::spawn(move || {
                let (mut stdin, mut bytes) = (std::io::stdin().lock(), [0; 16]);
                while let Ok(length @ 1..) = stdin.read(&mut bytes) {
                    for key in meanings(&bytes[..length]) {
                        if pressed.send(key).is_err() {
                            return;
                        }
                    }
                }
            });
        }
        Self(heard)
    }

    /// The next key; `None` where there is no keyboard.
    pub(super) async fn pressed(&mut self) -> Option<Pressed> {
        self.0.recv().await
    }
}

/// What was pressed: keys that are pressed in haste come together. Arrows and the like come as
/// several bytes behind an escape, and mean nothing here.
fn meanings(bytes: &[u8]) -> impl Iterator<Item = Pressed> {
    let keys = if bytes.starts_with(b"\x1b") { &[] } else { bytes };
    keys.iter().filter_map(|key| match key {
        // Ctrl-C is a byte where the terminal makes no signal of it.
        b'q' | b'Q' | b'\x03' => Some(Pressed::Quit),
        b'p' | b'P' | b' ' => Some(Pressed::Pause),
        b's' | b'S' | b'\t' => Some(Pressed::NextSort),
        b'd' | b'D' => Some(Pressed::Denied),
        b'a' | b'A' => Some(Pressed::Allowed),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_together_all_count_and_arrows_do_not() {
        let keys = |bytes| meanings(bytes).collect::<Vec<_>>();
        assert_eq!(keys(b" xq"), [Pressed::Pause, Pressed::Quit]);
        assert_eq!(keys(b"\x1b[A"), []);
    }
}
