//! `tollway quota`: quotas of single keys and of patterns, in a running service.

use std::io::Write;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use crate::client::{Client, Trust};
use crate::output::output;
use crate::queue::escaped;

/// Give a key, or the keys of a pattern, a quota of its own in a running service.
///
/// It applies at once, on every node that shares a store. KEY is a key, or a pattern with `*` in
/// it. Changes need a token with the role admin, which comes from TOLLWAY_TOKEN.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    /// The service's HTTP address: host:port, https://host:port or unix:/path
    #[arg(long, global = true, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    at: String,

    #[command(flatten)]
    trust: Trust,

    /// Print what the service says, one JSON object on each line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set the quota of a key
    Set {
        #[command(flatten)]
        whom: Whom,
        /// The quota as in the configuration, such as '1000/1h burst 50' or '10000/month anchor 15'
        quota: String,
        #[command(flatten)]
        terms: EndAndNote,
    },
    /// Print what was said of a key
    Get {
        #[command(flatten)]
        whom: Whom,
    },
    /// Take quota and gift away: the key has the quota of everybody else again
    Delete {
        #[command(flatten)]
        whom: Whom,
    },
    /// Print all keys and patterns of a policy that have quotas of their own
    List {
        /// The policy
        policy: String,
    },
    /// Give units: beyond the quota until a moment, or used ones back once
    Grant {
        #[command(flatten)]
        whom: Whom,
        /// How many
        units: u64,
        #[command(flatten)]
        terms: EndAndNote,
    },
}

#[derive(Debug, clap::Args)]
struct Whom {
    /// The policy
    policy: String,
    /// The key, or a pattern with `*` in it
    key: String,
}

#[derive(Debug, clap::Args)]
struct EndAndNote {
    /// When it ends, such as 2026-12-01T00:00:00Z or '2026-11-20 09:00 Europe/Berlin'
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Why, for whoever looks at it later
    #[arg(long)]
    note: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let client = Client::new(&args.at, &args.trust)?;
    let print = |told: &Value| -> Result<()> {
        match args.json {
            true => writeln!(output(), "{told}")?,
            false => writeln!(output(), "{}", line(told))?,
        }
        Ok(())
    };
    match args.command {
        Command::Set { whom, quota, terms } => {
            let body = terms.body("quota", quota.into());
            print(&client.put(&whom.path(), &body)?)
        }
        Command::Get { whom } => print(&client.get(&whom.path())?),
        Command::Delete { whom } => print(&client.delete(&whom.path())?),
        Command::Grant { whom, units, terms } => {
            let body = terms.body("units", units.into());
            print(&client.post(&(whom.path() + "/grant"), &body)?)
        }
        Command::List { policy } => list(&client, &policy, print),
    }
}

fn list(client: &Client, policy: &str, print: impl Fn(&Value) -> Result<()>) -> Result<()> {
    let path = format!("{}?max=1000", keys(policy));
    let mut page = client.get(&path)?;
    loop {
        let rows = page["keys"].as_array().context("what answers there is no Tollway")?;
        rows.iter().try_for_each(&print)?;
        let Some(next) = page["next"].as_str() else { return Ok(()) };
        page = client.get(&format!("{path}&after={next}"))?;
    }
}

fn keys(policy: &str) -> String {
    format!("/v1/policies/{}/keys", escaped(policy))
}

impl Whom {
    fn path(&self) -> String {
        format!("{}/{}", keys(&self.policy), escaped(&self.key))
    }
}

impl EndAndNote {
    fn body(self, field: &str, value: Value) -> Value {
        let mut body = Map::from_iter([(field.to_owned(), value)]);
        let given = [("until", self.until), ("note", self.note)];
        body.extend(given.into_iter().filter_map(|(name, text)| Some((name.into(), text?.into()))));
        body.into()
    }
}

/// One line for a reader. Keys and notes are chosen by strangers: a terminal must not obey them.
fn line(told: &Value) -> String {
    let text = |field: &str| told[field].as_str().filter(|text| !text.is_empty());
    let bytes = || format!("0x{}", text("key_hex").unwrap_or_default());
    let mut line = text("key").map_or_else(bytes, shown);
    let mut add = |words: String| line += &format!("  {words}");
    if told["removed"] == true {
        add("removed".to_owned());
    }
    if let Some(remaining) = told["remaining"].as_u64() {
        add(format!("{} given back, {remaining} of {} left", told["units"], told["limit"]));
    }
    text("in_force").into_iter().for_each(|quota| add(quota.to_owned()));
    text("why_not").into_iter().for_each(|why| add(format!("not in force: {}", shown(why))));
    text("until").into_iter().for_each(|until| add(format!("until {until}")));
    if let Some(units) = told["grant"]["units"].as_u64() {
        let until = told["grant"]["until"].as_str().unwrap_or_default();
        add(format!("with {units} more until {until}"));
    }
    text("note").into_iter().for_each(|note| add(format!("({})", shown(note))));
    text("by").into_iter().for_each(|by| add(format!("by {}", shown(by))));
    line
}

fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_says_who_has_what_until_when_and_why() {
        let told = json!({
            "key": "acme\u{1b}[2J", "key_hex": "00", "in_force": "100/1h", "why_not": null,
            "until": "2099-01-01T00:00:00Z", "note": "contract", "by": "ada",
            "grant": {"units": 5, "until": "2098-01-01T00:00:00Z"},
        });
        let expected = "acme\\u{1b}[2J  100/1h  until 2099-01-01T00:00:00Z  \
                        with 5 more until 2098-01-01T00:00:00Z  (contract)  by ada";
        assert_eq!(line(&told), expected);
        assert_eq!(
            line(&json!({"key": null, "key_hex": "ff2a", "removed": true})),
            "0xff2a  removed"
        );
    }

    #[test]
    fn a_path_has_policy_and_key_whatever_letters_they_have() {
        let whom = Whom { policy: "a b".to_owned(), key: "eu/*".to_owned() };
        assert_eq!(whom.path(), "/v1/policies/a%20b/keys/eu%2F%2A");
    }
}
