//! `tollgate top`: the keys most often allowed and denied in the last minutes, as a view that
//! refreshes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// Watch the busiest and the most denied keys of a running service.
///
/// If the service needs a token, give one with the role admin in TOLLGATE_TOKEN.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the service's HTTP listens
    #[arg(default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    address: String,

    /// Keys to show
    #[arg(short, default_value_t = 15, value_parser = clap::value_parser!(u8).range(1..=100))]
    n: u8,

    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    every: f64,

    /// Show once and leave
    #[arg(long)]
    once: bool,
}

/// Shows the view until interrupted.
pub(crate) fn run(args: Args) -> Result<()> {
    let every = Duration::try_from_secs_f64(args.every).context("--every")?;
    let mut out = std::io::stdout().lock();
    loop {
        let answer = fetch(&args.address, &format!("/admin/top?n={}", args.n))?;
        if !args.once {
            // Clear the screen and start at its top.
            out.write_all(b"\x1b[2J\x1b[H")?;
        }
        out.write_all(view(&answer).as_bytes())?;
        out.flush()?;
        if args.once {
            return Ok(());
        }
        std::thread::sleep(every);
    }
}

fn fetch(address: &str, path: &str) -> Result<Value> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("no service at {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let token = match std::env::var("TOLLGATE_TOKEN") {
        Ok(token) => format!("authorization: Bearer {token}\r\n"),
        Err(_) => String::new(),
    };
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n{token}connection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("the service answered {status}: {body}");
    }
    serde_json::from_str(body).context("the answer is not JSON")
}

/// Both lists side by side: decisions per minute over the last minute and the last five, and the key.
fn view(answer: &Value) -> String {
    use std::fmt::Write as _;
    let list = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let (denied, allowed) = (list("denied"), list("allowed"));
    let mut text = format!(
        "{:>9} {:>9} {:<28} {:>9} {:>9} {:<28}\n",
        "denied/m", "over 5m", "key", "allowed/m", "over 5m", "key"
    );
    for row in 0..denied.len().max(allowed.len()) {
        let cells = [&denied, &allowed].map(|list| cell(list.get(row)));
        let _ = writeln!(text, "{} {}", cells[0], cells[1].trim_end());
    }
    text
}

fn cell(entry: Option<&Value>) -> String {
    let Some(entry) = entry else { return format!("{:48}", "") };
    let key: String = entry["key"].as_str().unwrap_or_default().chars().take(28).collect();
    let rate = |window: &str| entry[window].as_f64().unwrap_or_default();
    // Rounded up: a key that is listed was seen.
    let (minute, five_minutes) = (rate("rate_1m").ceil(), rate("rate_5m").ceil());
    format!("{minute:>9} {five_minutes:>9} {key:<28}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_shows_both_rates_of_both_lists_side_by_side() {
        let answer = serde_json::json!({
            "denied": [{"key": "mallory", "rate_1m": 9, "rate_5m": 1.8}],
            "allowed": [
                {"key": "ada", "rate_1m": 5, "rate_5m": 4.0},
                {"key": "bob", "rate_1m": 2, "rate_5m": 0.4},
            ],
        });
        let text = view(&answer);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1..], [vec!["9", "2", "mallory", "5", "4", "ada"], vec!["2", "1", "bob"]]);
    }
}
