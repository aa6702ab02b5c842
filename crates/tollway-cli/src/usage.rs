//! `tollway usage`: what keys of durable policies used, for billing.

use std::io::Write;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::client::{Client, Trust};
use crate::output::output;
use crate::queue::escaped;

/// Usage of durable policies, by key and window.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Export(Export),
}

/// Print what keys used in their windows, from a running service.
///
/// One line for each key and window, by key; the units are those on the service's disk. A window
/// that is not over yet is told with what was used of it so far. A token comes from TOLLWAY_TOKEN.
#[derive(Debug, clap::Args)]
struct Export {
    /// The policy, which must be durable and have windows
    policy: String,

    /// The service's HTTP address: host:port, https://host:port or unix:/path
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    at: String,

    #[command(flatten)]
    trust: Trust,

    /// How to print: jsonl or csv
    #[arg(long, default_value = "jsonl", value_name = "FORMAT", value_parser = ["jsonl", "csv"])]
    format: String,

    /// Only this key
    #[arg(long)]
    key: Option<String>,

    /// Only windows that end after this moment, such as 2026-11-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Only windows that start before this moment
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Command::Export(export) = args.command;
    let client = Client::new(&export.at, &export.trust)?;
    let mut out = std::io::BufWriter::new(output());
    let is_csv = export.format == "csv";
    if is_csv {
        writeln!(out, "policy,key,key_hex,start,end,units")?;
    }
    let mut after = None;
    loop {
        let page = client.get(&export.path(after.as_deref()))?;
        let rows = page["usage"].as_array().context("what answers there is no Tollway")?;
        for row in rows {
            match is_csv {
                true => writeln!(out, "{}", csv(&export.policy, row))?,
                false => writeln!(out, "{}", line(&export.policy, row))?,
            }
        }
        after = page["after"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    out.flush()?;
    Ok(())
}

impl Export {
    fn path(&self, after: Option<&str>) -> String {
        let mut path = format!("/v1/usage/{}?max=1000", escaped(&self.policy));
        let given = [
            ("key", self.key.as_deref()),
            ("from", self.from.as_deref()),
            ("to", self.to.as_deref()),
            ("after", after),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                path += &format!("&{name}={}", escaped(value));
            }
        }
        path
    }
}

fn line(policy: &str, row: &Value) -> Value {
    let mut line = row.clone();
    line["policy"] = policy.into();
    line
}

/// A line of CSV as RFC 4180 has it. Keys are chosen by strangers: one that a spreadsheet would
/// take for a formula is not changed, since a bill must find its customer; it is quoted.
fn csv(policy: &str, row: &Value) -> String {
    let field = |name: &str| match &row[name] {
        Value::String(text) => quoted(text),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let names = ["key", "key_hex", "start", "end", "units"];
    let fields: Vec<String> =
        [quoted(policy)].into_iter().chain(names.into_iter().map(field)).collect();
    fields.join(",")
}

fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:@/+".contains(letter);
    let begins_plain = text.chars().next().is_some_and(|first| first.is_ascii_alphanumeric());
    if begins_plain && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_commas_quotes_and_line_ends_is_one_field() {
        assert_eq!(quoted("alice@example.com"), "alice@example.com");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"hi\"\n"), "\"say \"\"hi\"\"\n\"");
        assert_eq!(quoted("=1+1"), "\"=1+1\"");
    }
}
