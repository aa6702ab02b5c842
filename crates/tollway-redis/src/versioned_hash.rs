//! A hash that a fleet shares and every process of it follows: fields, their versions, and what was
//! changed last.
//!
//! ```text
//!   tw:o:{name}   epoch    drawn when the hash is made: one that was lost and made anew is another
//!                 version  how many changes there were
//!                 count    how many fields there are
//!                 f<field> `<version> <value>`: the version that the last change of it has made
//!                 l<n>     change n as it is told, of the last few
//! ```
//!
//! One key: it lives in one slot, each change of it is atomic, and a server that evicts it loses
//! all of it and not half. A change says which version of the field it replaces, so that nobody
//! writes over what he has not seen.
//!
//! **How a change is seen.** It is published, and whoever follows asks for what has changed since
//! the version that he knows. He asks every [`LOOK_EVERY`] as well: a message may be lost, and a
//! user of the server may lack the right to subscribe. While nothing changes the answer to that
//! costs the server one lookup.

use std::time::Duration;

use redis::{PushInfo, Value};
use tokio::sync::{Mutex, mpsc};
use tollway_core::{ErrorKind, StoreError};

use crate::connection::{Client, ClientSettings, Dialer, Probe, Proof, Script};
use crate::random_ids::RandomIds;
use crate::settings::Settings;

/// How often somebody who follows asks by himself whether something has changed.
pub const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Changes that are told one by one; after more of them the whole hash is read.
const TOLD_MAX: usize = 200;
/// How long a change or the reading of all may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A hash that a fleet shares.
#[derive(Debug)]
pub struct VersionedHash {
    client: std::sync::Arc<Client>,
    /// Listens, and sends nothing.
    _listener: std::sync::Arc<Client>,
    messages: Mutex<mpsc::UnboundedReceiver<PushInfo>>,
    key: Vec<u8>,
    channel: String,
    bounds: HashBounds,
    epochs: RandomIds,
    scripts: [Script; 2],
}

/// How much a hash may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashBounds {
    /// Fields.
    pub fields_max: usize,
    /// Changes that are kept to be told.
    pub changes_max: usize,
}

/// Which state of a hash somebody knows; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashVersion {
    epoch: Vec<u8>,
    /// How many changes there were.
    pub number: u64,
}

impl HashVersion {
    /// The version that the next change makes.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { epoch: self.epoch.clone(), number: self.number + 1 }
    }
}

/// What has changed since a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashNews {
    /// Nothing.
    Nothing,
    /// These changes in order, as they were told; the last one made the version that is there now.
    Changes(Vec<Vec<u8>>),
    /// So much that this is all there is.
    All(HashContent),
}

/// All that a hash holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashContent {
    /// Fields with the version and the value of each.
    pub fields: Vec<(Vec<u8>, u64, Vec<u8>)>,
    /// The last changes as they were told, in order, each with its number.
    pub changes: Vec<(u64, Vec<u8>)>,
}

/// A change of one field.
#[derive(Clone, Debug)]
pub struct HashChange<'a> {
    /// The field.
    pub field: &'a [u8],
    /// The version of it that is known; 0 if there is none.
    pub known: u64,
    /// What it is from now on; `None` removes it.
    pub value: Option<&'a [u8]>,
    /// How the change is told.
    pub told: &'a [u8],
    /// Fields that have ended, which make room, each with the version that is known.
    pub ended: &'a [(Vec<u8>, u64)],
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashChanged {
    /// It is made, and this version has it.
    Made(HashVersion),
    /// The field is not what the caller knows: he has to look first. Nothing was changed.
    Other,
    /// There are as many fields as there may be. Nothing was changed.
    Full,
}

impl VersionedHash {
    /// Connects to the hash of this name in the store at `url`.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::connect`](crate::RedisStore::connect).
    pub async fn connect(
        url: &str,
        name: &str,
        bounds: HashBounds,
        settings: &Settings,
    ) -> Result<Self, StoreError> {
        let key = format!("{}o:{{{name}}}", settings.prefix).into_bytes();
        let channel = format!("{}o:{name}", settings.prefix);
        let dialer = || Dialer::new(url, &key, settings);
        let asks = ClientSettings {
            connection_proves: Proof::Read,
            answer_proves: Proof::Read,
            may_be_full: true,
            ..ClientSettings::new(TIMEOUT, settings)
        };
        let client = Client::start(dialer()?, asks.clone(), settings.start_without).await?;
        let (told, messages) = mpsc::unbounded_channel();
        let subscription = Some((vec![as_pattern(&channel)], told));
        let listens = ClientSettings { subscription, probe: Some(Probe::Ping), ..asks };
        Ok(Self {
            client,
            // Where it may not subscribe it dials in vain, with pauses, and nothing waits for it.
            _listener: Client::join(dialer()?, listens).await,
            messages: Mutex::new(messages),
            key,
            channel,
            bounds,
            epochs: RandomIds::new(),
            scripts: [
                Script::new(include_str!("versioned_hash/change.lua").to_owned()),
                Script::new(include_str!("versioned_hash/since.lua").to_owned()),
            ],
        })
    }

    /// Waits until it is time to ask what has changed: somebody has told of a change, or nobody has
    /// for [`LOOK_EVERY`].
    ///
    /// # Cancel safety
    ///
    /// Whoever stops waiting misses nothing that [`Self::since`] does not tell.
    pub async fn wait(&self) {
        let mut messages = self.messages.lock().await;
        if tokio::time::timeout(LOOK_EVERY, messages.recv()).await.is_ok() {
            // One look is enough for all of them.
            while messages.try_recv().is_ok() {}
        }
    }

    /// What has changed since `known`, and which version that makes.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn since(&self, known: &HashVersion) -> Result<(HashVersion, HashNews), StoreError> {
        let arguments = [known.epoch.clone(), number(known.number), number(TOLD_MAX as u64)];
        let [_, script] = &self.scripts;
        let answer = self.client.run(script, &[&self.key], &arguments).await?;
        read_news(answer, known).ok_or_else(strange)
    }

    /// Changes one field.
    ///
    /// # Errors
    ///
    /// If the store does not answer; then nobody knows whether it is changed unless the error says
    /// so, and [`Self::since`] tells.
    pub async fn change(&self, change: &HashChange<'_>) -> Result<HashChanged, StoreError> {
        let HashBounds { fields_max, changes_max } = self.bounds;
        let mut arguments = vec![
            format!("{:032x}", self.epochs.next()).into_bytes(),
            self.channel.clone().into_bytes(),
            number(fields_max as u64),
            number(changes_max as u64),
            change.field.to_vec(),
            number(change.known),
            number(u64::from(change.value.is_some())),
            change.value.unwrap_or_default().to_vec(),
            change.told.to_vec(),
        ];
        for (field, version) in change.ended {
            arguments.extend([field.clone(), number(*version)]);
        }
        let [script, _] = &self.scripts;
        let answer = self.client.run(script, &[&self.key], &arguments).await?;
        read_changed(answer).ok_or_else(strange)
    }
}

/// The pattern that only this channel matches.
fn as_pattern(channel: &str) -> String {
    let special = |letter: char| "*?[]^-\\".contains(letter);
    channel.chars().flat_map(|at| special(at).then_some('\\').into_iter().chain([at])).collect()
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn strange() -> StoreError {
    StoreError::new(ErrorKind::Misuse, "the store holds something else where quotas are kept")
}

fn read_changed(answer: Value) -> Option<HashChanged> {
    let Value::Array(parts) = answer else { return None };
    match &parts[..] {
        [Value::Int(1), Value::BulkString(epoch), Value::Int(version)] => {
            let number = u64::try_from(*version).ok()?;
            Some(HashChanged::Made(HashVersion { epoch: epoch.clone(), number }))
        }
        [Value::Int(0), Value::BulkString(why)] if why == b"other" => Some(HashChanged::Other),
        [Value::Int(0), Value::BulkString(why)] if why == b"full" => Some(HashChanged::Full),
        _ => None,
    }
}

fn read_news(answer: Value, known: &HashVersion) -> Option<(HashVersion, HashNews)> {
    let Value::Array(parts) = answer else { return None };
    let mut parts = parts.into_iter();
    let Some(epoch) = parts.next() else {
        let news = match known == &HashVersion::default() {
            true => HashNews::Nothing,
            false => HashNews::All(HashContent::default()),
        };
        return Some((HashVersion::default(), news));
    };
    let (Value::BulkString(epoch), Some(Value::Int(version))) = (epoch, parts.next()) else {
        return None;
    };
    let version = HashVersion { epoch, number: u64::try_from(version).ok()? };
    let kind = parts.next();
    let rest = parts.map(|part| match part {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    });
    let rest = rest.collect::<Option<Vec<_>>>()?;
    let news = match kind {
        None => HashNews::Nothing,
        Some(Value::Int(0)) => HashNews::Changes(rest),
        Some(Value::Int(1)) => HashNews::All(content(rest)?),
        _ => return None,
    };
    Some((version, news))
}

fn content(pairs: Vec<Vec<u8>>) -> Option<HashContent> {
    let mut content = HashContent::default();
    let mut pairs = pairs.into_iter();
    while let (Some(name), Some(value)) = (pairs.next(), pairs.next()) {
        match &name[..] {
            [b'f', field @ ..] => {
                let space = value.iter().position(|byte| *byte == b' ')?;
                let version = std::str::from_utf8(&value[..space]).ok()?.parse().ok()?;
                content.fields.push((field.to_vec(), version, value[space + 1..].to_vec()));
            }
            [b'l', number @ ..] => {
                let number = std::str::from_utf8(number).ok()?.parse().ok()?;
                content.changes.push((number, value));
            }
            _ => {}
        }
    }
    content.changes.sort_unstable_by_key(|(number, _)| *number);
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_with_special_letters_is_matched_by_its_pattern_alone() {
        assert_eq!(as_pattern("tw:o:own"), "tw:o:own");
        assert_eq!(as_pattern("a*b[c]"), "a\\*b\\[c\\]");
    }

    #[test]
    fn what_is_no_answer_of_the_scripts_is_refused() {
        let known = HashVersion::default();
        for strange in [Value::Nil, Value::Int(1), Value::Array(vec![Value::Int(3)])] {
            assert_eq!(read_news(strange.clone(), &known), None);
            assert_eq!(read_changed(strange), None);
        }
        let gone = read_news(Value::Array(Vec::new()), &HashVersion { epoch: vec![1], number: 2 });
        assert_eq!(gone, Some((known, HashNews::All(HashContent::default()))));
    }
}
