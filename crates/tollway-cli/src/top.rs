//! `tollway top`: the keys most often allowed and denied in the last minutes, as a view that
//! refreshes.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::client::{Client, Trust};

/// Show the busiest and the most denied keys of a running service.
///
/// If the service needs a token, set TOLLWAY_TOKEN to one with the role admin.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The service's HTTP address: host:port, https://host:port or unix:/path
    #[arg(default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    address: String,

    #[command(flatten)]
    trust: Trust,

    /// How many keys to show
    #[arg(short, default_value_t = 15, value_parser = clap::value_parser!(u8).range(1..=100))]
    n: u8,

    /// Seconds between updates
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    every: f64,

    /// Print once and exit
    #[arg(long)]
    once: bool,
}

/// Shows the view until interrupted.
pub(crate) fn run(args: Args) -> Result<()> {
    let every = Duration::try_from_secs_f64(args.every).with_context(|| {
        format!("invalid --every {}: expected seconds, for example 1", args.every)
    })?;
    let client = Client::new(&args.address, &args.trust)?;
    let mut out = std::io::stdout().lock();
    loop {
        let answer = client.get(&format!("/admin/top?n={}", args.n))?;
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

/// Both lists side by side: decisions per minute over the last minute and the last five, and the
/// key.
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
