//! Where quotas of one's own are kept, and the one way in which they change.
//!
//! A change is checked against the rules, kept, and only then in force and answered. It runs in a
//! task of its own: a client that leaves in the middle must not leave a quota that is kept and not
//! in force. One change at a time, so that the file has them in the order in which they were
//! answered.
//!
//! On a shared store a change names the version of the quota that it replaces. If another node was
//! faster, its change is put in force first and the change is made anew upon that.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Mutex as AsyncMutex;
use tollway_core::{ErrorKind, Snapshot, StoreError};
use tollway_redis::{
    HashBounds, HashChange, HashChanged, HashContent, HashNews, HashVersion, Settings,
    VersionedHash,
};
use tracing::{error, info, warn};

use super::entry::{Change, Entry, Whom, millis};
use super::file::{QuotaFile, note};
use super::in_force::{OwnQuotas, Update};
use super::planned::{planned, too_many};
use super::{CHANGES_MAX, QUOTAS_MAX};
use crate::service::Service;

/// Other nodes may be faster this often in a row.
const TRIES: usize = 64;
/// Quotas that have ended and are removed with one change.
const ENDED_MAX: usize = 100;

/// Where quotas of one's own are kept.
#[derive(Debug, Default)]
pub struct Keeper {
    place: KeptIn,
    /// Held while something changes.
    known: AsyncMutex<Known>,
    /// The last changes, the latest last.
    changes: Mutex<VecDeque<Change>>,
    /// What was kept when the service started.
    at_start: Mutex<Vec<Update>>,
}

#[derive(Debug, Default)]
enum KeptIn {
    /// Nowhere: they end with the process.
    #[default]
    Process,
    File(Arc<Mutex<QuotaFile>>, PathBuf),
    Shared(Arc<VersionedHash>),
}

/// What is known of the shared store.
#[derive(Debug, Default)]
struct Known {
    version: HashVersion,
    /// Quotas that have ended and are still in the store.
    ended: Vec<(Vec<u8>, u64)>,
    /// Whether something holds on this node that the store does not keep.
    is_apart: bool,
}

/// What somebody asks to be changed.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub whom: Whom,
    pub what: What,
    /// Whose token it is.
    pub by: String,
    /// From where.
    pub from: String,
    /// Whether it is to hold on this node alone while the store that keeps it is away.
    pub here_if_away: bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// To set a quota, until then if it is to end.
    Set { quota: String, until_ms: Option<u64>, note: String },
    /// To give so many units beyond the quota until then.
    Grant { units: u64, until_ms: u64, note: String },
    /// To give so many units back once.
    GrantOnce { units: u64, note: String },
    /// To take quota and gift away.
    Remove,
    /// To ban a key under all policies, until then if the ban is to end.
    Ban { until_ms: Option<u64> },
    /// To lift a ban.
    Lift,
}

impl What {
    /// Why, in the words of whoever asks.
    pub(super) fn note(&self) -> &str {
        match self {
            Self::Set { note, .. } | Self::Grant { note, .. } | Self::GrantOnce { note, .. } => {
                note
            }
            Self::Remove | Self::Ban { .. } | Self::Lift => "",
        }
    }
}

/// Why nothing was changed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There is no such policy.
    UnknownPolicy,
    /// The text begins with the field that is wrong.
    Wrong(String),
    /// There is nothing to remove.
    Nothing,
    /// It could not be kept.
    NotKept(StoreError),
}

/// What came of a change.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    /// Whether nothing was said of them before.
    pub is_new: bool,
    /// What holds now.
    pub entry: Option<Entry>,
    /// What is left of the limit, after units were given back.
    pub left: Option<Snapshot>,
    /// Where it is kept, in a word.
    pub kept: &'static str,
}

impl Keeper {
    /// In a file of its own beside this snapshot.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written.
    pub fn beside_snapshot(snapshot: &Path) -> io::Result<Self> {
        let mut path = snapshot.as_os_str().to_owned();
        path.push(".quotas");
        let path = PathBuf::from(path);
        let opened = QuotaFile::open(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        if let Some(reason) = opened.warning {
            warn!(path = %path.display(), %reason, "own quotas were read as far as they are good");
        }
        let at_start = opened.content.entries.into_iter();
        let at_start = at_start.map(|(whom, entry)| (whom, 0, Some(entry))).collect();
        Ok(Self {
            place: KeptIn::File(Arc::new(Mutex::new(opened.file)), path),
            changes: Mutex::new(opened.content.changes),
            at_start: Mutex::new(at_start),
            ..Self::default()
        })
    }

    /// In the store at `url`, on Redis or Valkey.
    ///
    /// # Errors
    ///
    /// If it cannot be reached and `settings` do not allow that, or if waiting does not help.
    pub async fn in_store(url: &str, settings: &Settings) -> Result<Self, StoreError> {
        let bounds = HashBounds { fields_max: QUOTAS_MAX, changes_max: CHANGES_MAX };
        let hash = VersionedHash::connect(url, "quotas", bounds, settings).await?;
        Ok(Self { place: KeptIn::Shared(Arc::new(hash)), ..Self::default() })
    }

    /// Where they are kept, in a word.
    pub(crate) const fn kept(&self) -> &'static str {
        match self.place {
            KeptIn::Process => "process",
            KeptIn::File(..) => "file",
            KeptIn::Shared(_) => "store",
        }
    }

    /// The last changes, the latest first.
    pub(crate) fn last_changes(&self, most: usize) -> (usize, Vec<Change>) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (changes.len(), changes.iter().rev().take(most).cloned().collect())
    }

    /// Puts in force what was kept, before the service is asked anything; and from then on what
    /// other nodes change.
    pub(crate) async fn start(service: &Arc<Service>) {
        let keeper = service.own_quotas();
        let at_start = {
            let mut at_start = keeper.at_start.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *at_start)
        };
        if !at_start.is_empty() {
            service.enforcer.change_own_quotas(|own, rules, now| own.with(rules, now, at_start));
        }
        if let KeptIn::Shared(hash) = &keeper.place {
            let mut known = keeper.known.lock().await;
            let learnt = keeper.learn(service, hash, &mut known).await;
            drop(known);
            if let Err(reason) = learnt {
                warn!(%reason, "own quotas are not known yet: they are read once it answers");
            }
            tokio::spawn(follow(Arc::downgrade(service), Arc::clone(hash)));
        }
    }

    /// Drops what has ended.
    pub(crate) fn look(service: &Service) {
        let now_ms = millis(service.clock().now());
        let rules = service.enforcer.rules_at_hand();
        let has_ended = |own: &Arc<super::Own>| own.has_ended_part(now_ms);
        if !rules.own_quotas().all().any(has_ended) {
            return;
        }
        // Whoever changes something now drops them then, or the next look does.
        let Ok(mut known) = service.own_quotas().known.try_lock() else { return };
        let mut gone = Vec::new();
        service.enforcer.change_own_quotas(|own, rules, now_ms| {
            let gone_now = own.all().filter(|own| own.entry.at(now_ms).is_none());
            gone = gone_now.map(|own| (own.whom.clone(), own.version)).collect();
            let updates = gone.iter().map(|(whom, _)| (whom.clone(), 0, None)).collect();
            own.with(rules, now_ms, updates).anew(rules, now_ms)
        });
        for (whom, version) in gone {
            let key = crate::logs::escaped(&whom.key);
            match whom.is_ban() {
                true => info!(key, "the ban of a key has ended"),
                false => info!(policy = whom.policy, key, "own quota ended"),
            }
            if version > 0 && known.ended.len() < QUOTAS_MAX {
                known.ended.push((field(&whom), version));
            }
        }
    }

    /// Changes something, for every request from now on; on a shared store for every node.
    pub(crate) async fn change(service: &Arc<Service>, asked: Asked) -> Result<Changed, Refused> {
        let service = Arc::clone(service);
        let changing = tokio::spawn(async move {
            let keeper = service.own_quotas();
            let mut known = keeper.known.lock().await;
            keeper.change_alone(&service, &asked, &mut known).await
        });
        changing.await.unwrap_or_else(|broken| {
            let text = format!("the change broke off: {broken}");
            Err(Refused::NotKept(StoreError::new(ErrorKind::Unavailable, text)))
        })
    }

    async fn change_alone(
        &self,
        service: &Arc<Service>,
        asked: &Asked,
        known: &mut Known,
    ) -> Result<Changed, Refused> {
        for _ in 0..TRIES {
            let (change, before, is_new) = planned(service, asked)?;
            let update = (change.whom.clone(), 0, change.entry.clone());
            let (entry, mut kept) = (change.entry.clone(), self.kept());
            match &self.place {
                KeptIn::Process => {}
                KeptIn::File(file, _) => keep_in_file(file, &change).await.map_err(not_kept)?,
                KeptIn::Shared(hash) => {
                    match self.keep_in_store(service, hash, known, &change, before).await {
                        Ok(true) => return Ok(Changed { is_new, entry, left: None, kept }),
                        Ok(false) => continue,
                        Err(Refused::NotKept(error))
                            if asked.here_if_away && error.is_transient() =>
                        {
                            // Once the store answers, all that it holds is read anew, and this is
                            // not among it.
                            (known.version, known.is_apart) = (HashVersion::default(), true);
                            kept = "process";
                        }
                        Err(refused) => return Err(refused),
                    }
                }
            }
            self.put_in_force(service, vec![update], vec![change]);
            self.tidy_file(service).await;
            return Ok(Changed { is_new, entry, left: None, kept });
        }
        let text = "other nodes change it all the time: try again";
        Err(Refused::NotKept(StoreError::new(ErrorKind::Unavailable, text)))
    }

    /// Whether it is kept and in force; if not, another node was faster, and its change is.
    async fn keep_in_store(
        &self,
        service: &Arc<Service>,
        hash: &VersionedHash,
        known: &mut Known,
        change: &Change,
        before: u64,
    ) -> Result<bool, Refused> {
        let value = change.entry.as_ref().map(as_json);
        let ended: Vec<_> = known.ended.iter().take(ENDED_MAX).cloned().collect();
        let asked = HashChange {
            field: &field(&change.whom),
            known: before,
            value: value.as_deref(),
            told: &as_json(change),
            ended: &ended,
        };
        match hash.change(&asked).await.map_err(Refused::NotKept)? {
            HashChanged::Made(version) => {
                known.ended.drain(..ended.len());
                if version == known.version.next() {
                    let update = (change.whom.clone(), version.number, change.entry.clone());
                    self.put_in_force(service, vec![update], vec![change.clone()]);
                    known.version = version;
                } else if let Err(reason) = self.learn(service, hash, known).await {
                    // It is kept: the next look puts it in force here.
                    warn!(%reason, "a change of own quotas is kept and not yet in force here");
                }
                Ok(true)
            }
            HashChanged::Other => {
                known.version = HashVersion::default();
                self.learn(service, hash, known).await.map_err(Refused::NotKept)?;
                Ok(false)
            }
            HashChanged::Full => Err(too_many()),
        }
    }

    /// Puts in force what has changed in the store since this node has looked.
    async fn learn(
        &self,
        service: &Arc<Service>,
        hash: &VersionedHash,
        known: &mut Known,
    ) -> Result<(), StoreError> {
        let (version, news) = hash.since(&known.version).await?;
        match news {
            // There is nothing in the store at all.
            HashNews::Nothing if known.is_apart => self.take_all(service, HashContent::default()),
            HashNews::Nothing => {}
            HashNews::Changes(told) => {
                let changes: Vec<Change> = told.iter().filter_map(|text| read(text)).collect();
                let first = version.number + 1 - told.len() as u64;
                let numbered = told.iter().zip(first..);
                let update = |(text, number): (&Vec<u8>, u64)| {
                    let change: Change = read(text)?;
                    Some((change.whom, number, change.entry))
                };
                let updates = numbered.filter_map(update).collect();
                self.put_in_force(service, updates, changes);
            }
            HashNews::All(content) => {
                known.ended.clear();
                self.take_all(service, content);
            }
        }
        (known.version, known.is_apart) = (version, false);
        Ok(())
    }

    fn take_all(&self, service: &Arc<Service>, content: HashContent) {
        let entry = |(field, version, value): (Vec<u8>, u64, Vec<u8>)| {
            Some((whom_of(&field)?, version, Some(read(&value)?)))
        };
        let all: Vec<Update> = content.fields.into_iter().filter_map(entry).collect();
        let changes = content.changes.iter().filter_map(|(_, text)| read(text));
        let changes: VecDeque<Change> = changes.collect();
        info!(quotas = all.len(), "own quotas read from the store");
        service.enforcer.change_own_quotas(|_, rules, now_ms| OwnQuotas::new(rules, now_ms, all));
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) = changes;
    }

    fn put_in_force(&self, service: &Service, updates: Vec<Update>, changes: Vec<Change>) {
        service.enforcer.change_own_quotas(|own, rules, now_ms| own.with(rules, now_ms, updates));
        let mut listed = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.into_iter().for_each(|change| note(&mut listed, change));
    }

    /// Writes the file anew if it has grown. If that fails the old one goes on.
    async fn tidy_file(&self, service: &Arc<Service>) {
        let KeptIn::File(file, path) = &self.place else { return };
        if !file.lock().unwrap_or_else(PoisonError::into_inner).has_grown() {
            return;
        }
        let own = Arc::clone(service.enforcer.rules().own_quotas());
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (file, now_ms) = (Arc::clone(file), millis(service.clock().now()));
        let rewritten = tokio::task::spawn_blocking(move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.rewrite(&own, &changes, now_ms)
        });
        if let Ok(Err(reason)) = rewritten.await {
            error!(path = %path.display(), %reason, "own quotas could not be written anew");
        }
    }
}

/// Learns what other nodes change until the service is gone.
async fn follow(service: Weak<Service>, hash: Arc<VersionedHash>) {
    let mut is_away = false;
    loop {
        hash.wait().await;
        let Some(service) = service.upgrade() else { return };
        let keeper = service.own_quotas();
        let mut known = keeper.known.lock().await;
        let learnt = keeper.learn(&service, &hash, &mut known).await;
        if let (Err(reason), false) = (&learnt, is_away) {
            warn!(%reason, "own quotas cannot be looked at; those known stay in force");
        }
        is_away = learnt.is_err();
    }
}

async fn keep_in_file(file: &Arc<Mutex<QuotaFile>>, change: &Change) -> io::Result<()> {
    let (file, change) = (Arc::clone(file), change.clone());
    let kept = tokio::task::spawn_blocking(move || {
        file.lock().unwrap_or_else(PoisonError::into_inner).append(&change)
    });
    kept.await.unwrap_or_else(|broken| Err(io::Error::other(broken)))
}

fn not_kept(error: io::Error) -> Refused {
    let text = "the file of own quotas cannot be written; nothing is changed";
    Refused::NotKept(StoreError::new(ErrorKind::Unavailable, text).caused_by(error))
}

/// Under which name somebody stands in a shared store: no policy's name has a zero byte.
fn field(whom: &Whom) -> Vec<u8> {
    [whom.policy.as_bytes(), &[0], &whom.key].concat()
}

fn whom_of(field: &[u8]) -> Option<Whom> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let policy = String::from_utf8(field[..end].to_vec()).ok()?;
    Some(Whom { policy, key: field[end + 1..].into() })
}

fn as_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("words and numbers are JSON")
}

/// What a later version of this writes may be another thing: it is left alone, and told.
fn read<T: serde::de::DeserializeOwned>(text: &[u8]) -> Option<T> {
    let read = serde_json::from_slice(text);
    read.inspect_err(|reason| warn!(%reason, "an own quota in the store cannot be read")).ok()
}
