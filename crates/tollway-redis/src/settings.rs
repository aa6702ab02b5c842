//! What a store is told when it is made: bounds, times, and what single policies ask for.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

/// The most bytes of keys that what is kept in process for one key or reservation may take: their
/// number is no bound on memory, since whoever asks may choose them.
pub(crate) const KEPT_BYTES_MAX: usize = 1_024;

/// Bounds and times of a store. Everything has a default; all of it is a hard bound.
///
/// ```
/// use std::time::Duration;
/// use tollway_redis::Settings;
///
/// let settings = Settings { timeout: Duration::from_millis(50), ..Settings::default() };
/// assert_eq!(settings.prefix, "tw:");
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every key in the store starts with; without braces.
    pub prefix: String,
    /// How long a call may take, from the question to the answer.
    pub timeout: Duration,
    /// How long connecting may take, and a probe of a server that did not answer.
    pub connect_timeout: Duration,
    /// The longest pause between two attempts to reconnect; the first is a hundredth of it. A
    /// server that nobody has asked for so long is asked whether it is still there.
    pub backoff_max: Duration,
    /// The most requests that one run of a script answers.
    pub batch_max: usize,
    /// The most round trips under way at one server. What is asked meanwhile goes with the next;
    /// but after a fiftieth of [`Self::timeout`] it goes without waiting for one to end, so that a
    /// server far away has nearly all of the budget for its answer. Such round trips are at most
    /// 64.
    pub in_flight_max: usize,
    /// The most requests that wait for one server; more are answered as if it were gone.
    pub queue_max: usize,
    /// Whether a request is asked again when the connection broke before its answer came. The store
    /// then remembers every answer for [`Self::remember`], by a name that the request carries, so
    /// that nothing is taken twice; this costs a second write per request.
    pub ask_again: bool,
    /// How long answers are remembered if [`Self::ask_again`] is set.
    pub remember: Duration,
    /// Denials answered in process; `None` asks the store every time.
    pub denials: Option<Denials>,
    /// The most keys for which a policy with `Local` shares keeps a state while the store is gone,
    /// the most that have a lease, and the most reservations of which this process remembers the
    /// charges. Those whose names take more than 1 KiB together are looked up instead.
    pub local_keys_max: usize,
    /// Whether to start although the store cannot be reached, or is a replica at the moment: its
    /// policies answer until it is found in the background. What waiting does not mend is an error
    /// all the same: a URL that is not valid, wrong credentials, a certificate that is not
    /// trusted.
    pub start_without: bool,
    /// Whether the hash tag of a key, as in `user{acme}:7`, chooses its slot in a cluster, so that
    /// keys of one tag can be charged together. Whoever chooses keys then chooses which server
    /// bears them: leave it off where keys come from strangers. It names the states, so all
    /// processes of a fleet must agree on it.
    pub key_tags: bool,
    /// Certificates for `rediss://`; by default those of the system and no client certificate.
    pub certificates: Certificates,
    /// What single policies ask for, by name.
    pub policies: BTreeMap<String, PolicySettings>,
}

/// Denials answered in process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denials {
    /// The most keys remembered, and the most KiB that they take with their states.
    pub keys_max: usize,
    /// After this long the store is asked again even about a key that must still be denied: the
    /// bound within which refunds and resets by other processes are respected.
    pub recheck: Duration,
}

/// Certificates in PEM format.
#[derive(Clone, Default)]
pub struct Certificates {
    /// Whom to trust; the system's roots if `None`.
    pub authority: Option<Vec<u8>>,
    /// The client's certificate and its key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// What one policy asks of the store beyond its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// Units taken in batches and spent in process.
    pub lease: Option<LeaseTerms>,
    /// Over how many slots each key is split.
    pub split: Option<NonZeroU16>,
    /// Whether a request over several slots of a cluster may be made of reservations that are
    /// committed, or all rolled back; otherwise it is refused.
    pub across_slots: bool,
}

/// How a process may take units in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The most units that one process holds in advance for one key.
    pub units_max: u64,
    /// For how long it may hold them; what is unused goes back then.
    pub time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "tw:".to_owned(),
            timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(1),
            backoff_max: Duration::from_secs(1),
            batch_max: 64,
            in_flight_max: 2,
            queue_max: 16_384,
            ask_again: false,
            remember: Duration::from_secs(10),
            denials: None,
            local_keys_max: 65_536,
            start_without: true,
            key_tags: false,
            certificates: Certificates::default(),
            policies: BTreeMap::new(),
        }
    }
}

impl Default for Denials {
    fn default() -> Self {
        Self { keys_max: 65_536, recheck: Duration::from_secs(1) }
    }
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates")
            .field("authority", &self.authority.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
