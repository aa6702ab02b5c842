//! `tollway top`: plain lines in a pipe, and a view that fills terminals of any size.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::serve::{Folder, Served};
use crate::tool::{misuse, succeed};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service that has allowed two requests of ada and denied three.
fn busy(name: &str) -> (Folder, Served) {
    let folder = Folder::new(name);
    let config = "[[policies]]\nname = \"api\"\nquota = \"2/1h\"\n";
    let served = Served::start(&["--config", &folder.file("a.toml", config)]);
    for _ in 0..5 {
        served.ask("POST", "/v1/check", r#"{"policy":"api","key":"ada"}"#);
    }
    (folder, served)
}

#[test]
fn a_pipe_gets_plain_lines_with_totals_rates_and_keys() {
    let (_folder, served) = busy("top-pipe");
    let told = succeed(&["top", "--once", &served.http.to_string()]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "in all 2 allowed, 3 denied", "{told}");
    for head in ["DENIED/s", "ALLOWED/s", "5 min", "REASON", "POLICY", "KEY"] {
        assert!(lines[1].contains(head), "{told}");
    }
    let cells: Vec<&str> = lines[2].split_whitespace().collect();
    // Three denials in a minute are 0.05 per second.
    assert_eq!((cells[0], cells[cells.len() - 1]), ("0.05", "ada"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
}

#[test]
fn flags_out_of_range_are_refused() {
    for wrong in [["--every", "1"], ["--every", "1ms"], ["-n", "0"], ["-n", "101"], ["--sort", "x"]]
    {
        misuse(&["top", wrong[0], wrong[1]]);
    }
}

/// `top` on a terminal of its own; killed when dropped.
struct OnTerminal {
    process: Child,
    keyboard: Option<ChildStdin>,
    shown: mpsc::Receiver<String>,
    seen: String,
}

impl OnTerminal {
    fn new(served: &Served, columns: u16, rows: u16, variables: &str) -> Self {
        let binary = env!("CARGO_BIN_EXE_tollway");
        let at = served.http;
        let line =
            format!("stty cols {columns} rows {rows}; {variables} {binary} top --every 50ms {at}");
        let mut process = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("script is installed");
        let (told, shown) = mpsc::channel();
        let mut out = process.stdout.take().expect("piped");
        std::thread::spawn(move || {
            let mut chunk = [0; 4_096];
            while let Ok(length @ 1..) = out.read(&mut chunk) {
                drop(told.send(String::from_utf8_lossy(&chunk[..length]).into_owned()));
            }
        });
        let keyboard = process.stdin.take();
        Self { process, keyboard, shown, seen: String::new() }
    }

    /// Waits until `text` is shown, and forgets what was before.
    fn until(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let more = self.shown.recv_timeout(PATIENCE);
            self.seen += &more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
        }
    }

    fn press(&mut self, key: &str) {
        let keyboard = self.keyboard.as_mut().expect("a keyboard");
        keyboard.write_all(key.as_bytes()).and_then(|()| keyboard.flush()).expect("it listens");
    }

    /// Presses a key that ends it, and waits for the end.
    fn end(mut self, key: &str) {
        self.press(key);
        // `script` ends when its own keyboard does.
        self.keyboard = None;
        self.until("\u{1b}[?25h\u{1b}[?1049l");
        self.process.wait().expect("ours");
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_terminal_is_filled_and_given_back_and_keys_work() {
    let (_folder, served) = busy("top-keys");
    let mut top = OnTerminal::new(&served, 80, 24, "");
    top.until("\u{1b}[?1049h");
    let first = top.until("sort: denied, 1 min");
    assert_eq!(first.matches("\r\n").count(), 23, "as many lines as there are rows: {first:?}");
    assert!(first.contains("\u{1b}[1mtollway top  127.0.0.1:"), "a title: {first:?}");
    assert!(first.contains("ada") && first.contains("\u{1b}[31m"), "red: {first:?}");
    top.until("now 0/s allowed, 0/s denied");
    for words in ["denied, 5 min", "allowed, 1 min", "allowed, 5 min"] {
        top.press("s");
        top.until(&format!("sort: {words}"));
    }
    top.press("d");
    top.until("sort: denied, 1 min");
    top.press("p");
    top.until("  paused");
    top.press(" ");
    top.end("q");
    let mut top = OnTerminal::new(&served, 80, 24, "");
    top.until("sort: denied");
    top.end("\u{3}");
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let (_folder, served) = busy("top-plain");
    let mut top = OnTerminal::new(&served, 40, 10, "NO_COLOR=1");
    top.until("\u{1b}[?1049h");
    let shown = top.until("sort: denied");
    assert_eq!(shown.matches("\r\n").count(), 9, "{shown:?}");
    assert!(!shown.contains("\u{1b}[1m") && !shown.contains("\u{1b}[31m"), "{shown:?}");
    top.end("q");
}

#[test]
fn a_service_that_goes_away_is_told_and_the_last_figures_stay() {
    let (_folder, served) = busy("top-away");
    let mut top = OnTerminal::new(&served, 200, 50, "");
    top.until("ada");
    served.stop("KILL");
    top.until("no service answers at");
    top.until("ada");
    top.end("q");
}
