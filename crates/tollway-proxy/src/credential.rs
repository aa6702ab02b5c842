//! Credentials: told apart by a hash, each with its ledger, never kept or logged themselves.
//!
//! A credential that the upstream refuses several times in a row is not tried for a while; then one
//! request is let through to see (*half open*), and its answer decides for the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;
use ring::digest::{Context, SHA256};
use tokio::time::Instant;

use crate::Settings;
use tollway_upstream::budget::{BoxFuture, Change, Ledger, LedgerError};

/// After a ledger could not be opened the next try is this much later.
const OPEN_AGAIN: Duration = Duration::from_millis(250);

/// A credential by its hash: 128 bits of SHA-256, the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialId([u8; 16]);

/// A request shows a credential twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TwoCredentials;

/// Opens the ledger of a credential that was not seen before.
pub type OpenLedger = Arc<
    dyn Fn(CredentialId) -> BoxFuture<'static, Result<Arc<dyn Ledger>, LedgerError>> + Send + Sync,
>;

/// One credential in use.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: CredentialId,
    pub(super) ledger: Arc<dyn Ledger>,
    standing: Mutex<Standing>,
}

/// How the upstream thinks of a credential.
#[derive(Debug)]
struct Standing {
    used_at: Instant,
    /// Refusals in a row.
    strikes: u32,
    locked_until: Option<Instant>,
    probe_at: Option<Instant>,
}

/// What changed for a credential by the upstream's 401s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not tried for so long.
    Locked(Duration),
    /// It is tried again.
    Unlocked,
}

/// Why a credential has no account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAccount {
    Full,
    Unavailable,
}

/// The credentials in use, bounded.
pub(super) struct Accounts {
    open: OpenLedger,
    accounts_max: usize,
    table: Mutex<HashMap<CredentialId, Arc<Account>>>,
}

impl CredentialId {
    /// The credential that a request's fields show; that of nobody if they show none.
    ///
    /// The first of `fields` that is there counts, and no other: a field that the upstream does not
    /// look at must not make a budget of its own. How a scheme and the spaces after it are written
    /// makes no difference to the upstream, and makes none here.
    ///
    /// # Errors
    ///
    /// If that field is there more than once: which one counts is the upstream's to say.
    pub(super) fn of(headers: &HeaderMap, fields: &[HeaderName]) -> Result<Self, TwoCredentials> {
        let mut digest = Context::new(&SHA256);
        if let Some(name) = fields.iter().find(|name| headers.contains_key(*name)) {
            let mut values = headers.get_all(name).iter();
            let (Some(value), None) = (values.next(), values.next()) else {
                return Err(TwoCredentials);
            };
            digest.update(name.as_str().as_bytes());
            let words = value.as_bytes().split(u8::is_ascii_whitespace);
            let words: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
            for (index, word) in words.iter().enumerate() {
                digest.update(&[0]);
                // A scheme is one with a word after it.
                if index == 0 && words.len() > 1 {
                    digest.update(&word.to_ascii_lowercase());
                } else {
                    digest.update(word);
                }
            }
        }
        let mut id = [0; 16];
        id.copy_from_slice(&digest.finish().as_ref()[..16]);
        Ok(Self(id))
    }

    /// Enough of it to tell it from the others, for logs and labels.
    pub(super) fn short(self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(id))
    }
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Accounts {
    pub(super) fn new(open: OpenLedger, accounts_max: usize) -> Self {
        Self { open, accounts_max, table: Mutex::default() }
    }

    /// The account of a credential.
    ///
    /// # Errors
    ///
    /// If there is no room for another, or its ledger cannot be opened.
    pub(super) async fn get(
        &self,
        id: CredentialId,
        patience: Duration,
    ) -> Result<Arc<Account>, NoAccount> {
        if let Some(account) = self.known(id) {
            account.standing().used_at = Instant::now();
            return Ok(account);
        }
        let ledger = self.open(id, patience).await?;
        let mut table = self.lock();
        if let Some(account) = table.get(&id) {
            return Ok(Arc::clone(account));
        }
        if table.len() >= self.accounts_max {
            let oldest = idlest(&table).ok_or(NoAccount::Full)?;
            table.remove(&oldest);
        }
        let account = Arc::new(Account::new(id, ledger));
        table.insert(id, Arc::clone(&account));
        Ok(account)
    }

    /// Opens a ledger without the lock: a credential that opens slowly must not hold up the others.
    /// A store that is slow or starting is asked again for as long as the request can wait.
    async fn open(
        &self,
        id: CredentialId,
        patience: Duration,
    ) -> Result<Arc<dyn Ledger>, NoAccount> {
        let deadline = Instant::now() + patience;
        loop {
            match (self.open)(id).await {
                Ok(ledger) => return Ok(ledger),
                Err(_) if Instant::now() + OPEN_AGAIN > deadline => {
                    return Err(NoAccount::Unavailable);
                }
                Err(_) => tokio::time::sleep(OPEN_AGAIN).await,
            }
        }
    }

    /// The account of a credential that is in use.
    pub(super) fn known(&self, id: CredentialId) -> Option<Arc<Account>> {
        self.lock().get(&id).cloned()
    }

    /// The first account in the order of ids of those that `fits` accepts.
    pub(super) fn first(&self, fits: impl Fn(CredentialId) -> bool) -> Option<Arc<Account>> {
        let table = self.lock();
        let ids = table.values().filter(|account| fits(account.id));
        ids.min_by_key(|account| account.id).cloned()
    }

    /// What changed in the budgets of each since this was last called. Under the lock: an account
    /// that somebody else holds counts as in use, and is not forgotten for another.
    pub(super) fn take_changes(&self) -> Vec<(CredentialId, Vec<Change>)> {
        let table = self.lock();
        let changes = table.values().map(|account| (account.id, account.ledger.take_changes()));
        changes.filter(|(_, changes)| !changes.is_empty()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CredentialId, Arc<Account>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The credential unused for longest that nobody uses now.
fn idlest(table: &HashMap<CredentialId, Arc<Account>>) -> Option<CredentialId> {
    let unused = table.values().filter(|account| Arc::strong_count(account) == 1);
    unused.min_by_key(|account| account.standing().used_at).map(|account| account.id)
}

impl Account {
    fn new(id: CredentialId, ledger: Arc<dyn Ledger>) -> Self {
        let used_at = Instant::now();
        let standing = Standing { used_at, strikes: 0, locked_until: None, probe_at: None };
        Self { id, ledger, standing: Mutex::new(standing) }
    }

    /// Whether the credential may be tried, or how long not.
    pub(super) fn admit(&self, patience: Duration) -> Result<(), Duration> {
        let now = Instant::now();
        let mut standing = self.standing();
        let Some(until) = standing.locked_until else { return Ok(()) };
        if now < until {
            return Err(until - now);
        }
        // One request sees whether the lock still holds; lost, it is replaced after a while.
        match standing.probe_at {
            Some(at) if now < at + patience => Err(at + patience - now),
            _ => {
                standing.probe_at = Some(now);
                Ok(())
            }
        }
    }

    /// Learns from a status, or from an operator: a credential that is not refused is not locked.
    /// What that changed.
    pub(super) fn judge(&self, is_unauthorized: bool, settings: &Settings) -> Option<Verdict> {
        let mut standing = self.standing();
        standing.probe_at = None;
        if !is_unauthorized {
            standing.strikes = 0;
            return standing.locked_until.take().map(|_| Verdict::Unlocked);
        }
        standing.strikes = standing.strikes.saturating_add(1);
        if standing.strikes < settings.unauthorized_max {
            return None;
        }
        let before = standing.locked_until.replace(Instant::now() + settings.unauthorized_for);
        before.is_none().then_some(Verdict::Locked(settings.unauthorized_for))
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
