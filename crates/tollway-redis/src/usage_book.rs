//! What keys used in their windows, for bills: kept in a shared store beside the states.
//!
//! ```text
//!   tw:2u:{usage}i<policy>            windows: `<start> <end>` by when they are no longer kept
//!   tw:2u:{usage}h<policy>:<window>   units by key; under no name those of keys without room
//!   tw:2u:{usage}n<policy>:<window>   the keys in order
//!   tw:2u:{usage}p<process>           the number of the last addition of a process
//!   tw:2u:{usage}r<reservation>       what a reservation took, until it is settled
//! ```
//!
//! Times are nanoseconds since 1970 in 16 hexadecimal digits. All of it has one tag, so that one
//! addition is one script, whichever policies it is for.
//!
//! **Once.** Additions of a process are numbered and sent one after the other: one that was not
//! answered is sent again, and a server that has made it already makes it no second time.
//!
//! **Bounds.** 1,000,000 keys of a window, 10,000 windows of a policy, 65,536 charges that wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollway_core::{ErrorKind, StoreError, Timestamp};

use crate::connection::{BatchBounds, Batcher, Client, ClientSettings, Dialer, Proof, Script};
use crate::random_ids::RandomIds;
use crate::settings::Settings;

const BOUNDS: BatchBounds = BatchBounds {
    waiting_max: 65_536,
    calls_max: 1_024,
    bytes_max: 1 << 20,
    in_flight_max: 1,
    late_after: None,
    yields: 0,
};
/// How long an addition or a page may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before an addition is sent again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a server remembers the last addition of a process that says nothing more.
const PROCESS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// How much a book may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageBounds {
    /// Keys of a window. The units of others are counted together.
    pub keys_max: usize,
    /// Windows of a policy. The oldest makes room.
    pub windows_max: usize,
}

impl Default for UsageBounds {
    fn default() -> Self {
        Self { keys_max: 1_000_000, windows_max: 10_000 }
    }
}

/// A window of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageWindow {
    /// The policy's name.
    pub policy: String,
    /// When it starts.
    pub start: Timestamp,
    /// When it ends.
    pub end: Timestamp,
    /// How long what was used in it is kept.
    pub kept_until: Timestamp,
}

/// Units that came to, or went from, what a key used in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageChange {
    /// The window.
    pub window: UsageWindow,
    /// The key.
    pub key: Vec<u8>,
    /// Units that came.
    pub taken: u64,
    /// Units that went.
    pub given_back: u64,
}

/// Which rows are asked for.
#[derive(Clone, Debug)]
pub struct UsageRows {
    /// The policy's name.
    pub policy: String,
    /// Of one key only.
    pub key: Option<Vec<u8>>,
    /// Of windows that end after this.
    pub from: Timestamp,
    /// Of windows that start before this.
    pub until: Timestamp,
    /// After the row of this window and key.
    pub after: Option<(String, Vec<u8>)>,
    /// How many.
    pub most: usize,
}

/// What one key used in one window; of an empty key, what those without room used together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// The window as the store names it, for the page after this row.
    pub window: String,
    /// The key.
    pub key: Vec<u8>,
    /// When the window starts.
    pub start: Timestamp,
    /// When it ends.
    pub end: Timestamp,
    /// Units.
    pub units: u64,
}

/// What keys used, in a store.
pub struct UsageBook {
    client: Arc<Client>,
    additions: Batcher<Addition>,
    waiting: Arc<AtomicU64>,
    lost: AtomicU64,
    prefix: String,
    read: Script,
}

/// The changes of one request, and who waits for them.
struct Addition {
    changes: Vec<UsageChange>,
    done: oneshot::Sender<()>,
}

impl UsageBook {
    /// The book in the store at `url`, to which nothing connects before it is used.
    ///
    /// # Errors
    ///
    /// If the URL is none.
    pub fn new(url: &str, bounds: UsageBounds, settings: &Settings) -> Result<Self, StoreError> {
        let prefix = format!("{}2u:{{usage}}", settings.prefix);
        let dialer = Dialer::new(url, prefix.as_bytes(), settings)?;
        let asks = ClientSettings {
            waits_for_connection: true,
            connection_proves: Proof::Read,
            may_be_full: true,
            ..ClientSettings::new(TIMEOUT, settings)
        };
        let runtime = Handle::current();
        let client = Client::on_demand(&runtime, dialer, asks);
        let waiting = Arc::new(AtomicU64::new(0));
        let writer = Arc::new(Writer {
            client: Arc::clone(&client),
            prefix: prefix.clone(),
            bounds,
            process: format!("{prefix}p{:032x}", RandomIds::new().next()),
            sent: AtomicU64::new(0),
            waiting: Arc::clone(&waiting),
            script: Script::new(include_str!("usage_book/add.lua").to_owned()),
        });
        let size = |addition: &Addition| {
            addition.changes.iter().map(|change| 128 + change.key.len()).sum::<usize>()
        };
        let run = move |additions| Some(Arc::clone(&writer).write(additions));
        let additions = Batcher::start(&runtime, BOUNDS, size, run);
        let read = Script::new(include_str!("usage_book/page.lua").to_owned());
        Ok(Self { client, additions, waiting, lost: AtomicU64::new(0), prefix, read })
    }

    /// Adds what was used. What is given back says when it is in the store; it is added whether
    /// anybody waits for that or not. `None` if too much waits already: then it is lost, and
    /// counted.
    pub fn add(&self, changes: Vec<UsageChange>) -> Option<oneshot::Receiver<()>> {
        let (done, added) = oneshot::channel();
        let units = changes.iter().fold(0_u64, |sum, change| sum.saturating_add(change.taken));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.additions.submit(Addition { changes, done }).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.lost.fetch_add(units, Ordering::Relaxed);
            return None;
        }
        Some(added)
    }

    /// Requests whose usage is not in the store yet.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Units that were lost because too much was waiting.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Rows by window, and by key within it.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn rows(&self, asked: &UsageRows) -> Result<Vec<UsageRow>, StoreError> {
        let UsageRows { policy, key, from, until, after, most } = asked;
        let [index, units, names] =
            ['i', 'h', 'n'].map(|sort| format!("{}{sort}{policy}", self.prefix).into_bytes());
        let begin = |name: Vec<u8>| [name, b":".to_vec()].concat();
        let (after_window, after_key) = after.clone().unwrap_or_default();
        let arguments = [
            begin(units),
            begin(names),
            hex(*from).into_bytes(),
            hex(*until).into_bytes(),
            after_window.into_bytes(),
            after_key,
            most.to_string().into_bytes(),
            if key.is_some() { b"1".to_vec() } else { Vec::new() },
            key.clone().unwrap_or_default(),
        ];
        let answer = self.client.run(&self.read, &[index], &arguments).await?;
        read_rows(answer).ok_or_else(strange)
    }

    /// Keeps what a reservation took, in words of the caller's, for as long as it may be open.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn hold(&self, id: u128, told: &[u8], time: Duration) -> Result<(), StoreError> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut set = redis::cmd("SET");
        set.arg(self.held_key(id)).arg(told).arg("PX").arg(millis);
        self.client.send(&set).await?;
        Ok(())
    }

    /// What was kept of a reservation.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn held(&self, id: u128) -> Result<Option<Vec<u8>>, StoreError> {
        let mut get = redis::cmd("GET");
        get.arg(self.held_key(id));
        match self.client.send(&get).await? {
            Value::BulkString(told) => Ok(Some(told)),
            _ => Ok(None),
        }
    }

    /// Forgets a reservation that is settled.
    ///
    /// # Errors
    ///
    /// If the store does not answer; what was kept expires all the same.
    pub async fn forget(&self, id: u128) -> Result<(), StoreError> {
        let mut del = redis::cmd("DEL");
        del.arg(self.held_key(id));
        self.client.send(&del).await?;
        Ok(())
    }

    fn held_key(&self, id: u128) -> String {
        format!("{}r{id:032x}", self.prefix)
    }
}

/// Sends what was gathered, until it is in the store.
struct Writer {
    client: Arc<Client>,
    prefix: String,
    bounds: UsageBounds,
    /// The key that has the number of the last addition.
    process: String,
    sent: AtomicU64,
    waiting: Arc<AtomicU64>,
    script: Script,
}

impl Writer {
    async fn write(self: Arc<Self>, additions: Vec<Addition>) {
        let sequence = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        let count = additions.len() as u64;
        let (changes, waiting): (Vec<_>, Vec<_>) =
            additions.into_iter().map(|addition| (addition.changes, addition.done)).unzip();
        let (keys, arguments) = self.encoded(sequence, changes.into_iter().flatten());
        // Nothing is given up: what was acknowledged is to be billed.
        while self.client.run(&self.script, &keys, &arguments).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        // Whoever does not wait any more is not told.
        for done in waiting {
            let _ = done.send(());
        }
    }

    fn encoded(
        &self,
        sequence: u64,
        changes: impl Iterator<Item = UsageChange>,
    ) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut windows: BTreeMap<UsageWindow, BTreeMap<Vec<u8>, (u64, u64)>> = BTreeMap::new();
        for UsageChange { window, key, taken, given_back } in changes {
            let sums = windows.entry(window).or_default().entry(key).or_default();
            *sums = (sums.0.saturating_add(taken), sums.1.saturating_add(given_back));
        }
        let [windows_max, keys_max] = [self.bounds.windows_max, self.bounds.keys_max];
        let kept_ms = PROCESS_KEPT.as_millis() as u64;
        let numbers = [sequence, kept_ms, windows_max as u64, keys_max as u64];
        let (mut keys, mut arguments) = (vec![self.process.clone()], numbers.map(text).to_vec());
        for (window, sums) in windows {
            let name = format!("{} {}", hex(window.start), hex(window.end));
            let policy = &window.policy;
            keys.push(format!("{}i{policy}", self.prefix));
            keys.extend(['h', 'n'].map(|sort| format!("{}{sort}{policy}:{name}", self.prefix)));
            let kept_until_ms = window.kept_until.as_nanos().div_ceil(1_000_000);
            arguments.extend([name.into_bytes(), text(kept_until_ms), text(sums.len() as u64)]);
            for (key, (taken, given_back)) in sums {
                arguments.extend([key, text(taken.min(MOST)), text(given_back.min(MOST))]);
            }
        }
        (keys, arguments)
    }
}

/// The most that a server adds at once.
const MOST: u64 = i64::MAX as u64;

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn hex(at: Timestamp) -> String {
    format!("{:016x}", at.as_nanos())
}

fn read_rows(answer: Value) -> Option<Vec<UsageRow>> {
    let Value::Array(values) = answer else { return None };
    let bytes = |value: &Value| match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        _ => None,
    };
    let moment = |digits: &str| u64::from_str_radix(digits, 16).ok().map(Timestamp::from_nanos);
    let row = |row: &[Value]| {
        let window = String::from_utf8(bytes(row.first()?)?).ok()?;
        let (start, end) = window.split_once(' ')?;
        let (start, end) = (moment(start)?, moment(end)?);
        let units = String::from_utf8(bytes(row.get(2)?)?).ok()?.parse().ok()?;
        Some(UsageRow { key: bytes(&row[1])?, start, end, units, window })
    };
    values.chunks(3).map(row).collect()
}

fn strange() -> StoreError {
    StoreError::new(ErrorKind::Misuse, "the store holds something else where usage is kept")
}

impl std::fmt::Debug for UsageBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.waiting();
        f.debug_struct("UsageBook").field("waiting", &waiting).finish_non_exhaustive()
    }
}
