//! `tollgate top`: the keys most often allowed and denied, as a view that refreshes.

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

fn view(answer: &Value) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{:>12} {:<28} {:>12} {:<28}\n", "denied", "key", "allowed", "key");
    let list = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let (denied, allowed) = (list("denied"), list("allowed"));
    for row in 0..denied.len().max(allowed.len()) {
        let cell = |list: &[Value]| match list.get(row) {
            Some(entry) => {
                let key: String =
                    entry["key"].as_str().unwrap_or_default().chars().take(28).collect();
                (entry["count"].to_string(), key)
            }
            None => (String::new(), String::new()),
        };
        let ((denials, denied_key), (allowances, allowed_key)) = (cell(&denied), cell(&allowed));
        let _ = writeln!(text, "{denials:>12} {denied_key:<28} {allowances:>12} {allowed_key:<28}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_shows_both_lists_side_by_side() {
        let answer = serde_json::json!({
            "denied": [{"key": "mallory", "count": 9}],
            "allowed": [{"key": "ada", "count": 5}, {"key": "bob", "count": 2}],
        });
        let text = view(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("9 mallory") && lines[1].contains("5 ada"));
        assert!(lines[2].trim_start().starts_with("2 bob"));
    }
}
