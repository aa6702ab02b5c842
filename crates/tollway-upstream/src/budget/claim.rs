//! What a request asks for before it is sent, and the answer that it must not be.

use std::fmt;
use std::time::Duration;

use crate::profile::{Costs, Profile, Route, fingerprint};

/// Which of the waiting requests of a bucket goes first. Lower ones are overtaken, never starved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others: somebody is waiting for it.
    High,
    /// As usual.
    #[default]
    Normal,
    /// After all others: backfills, sweeps.
    Low,
}

/// What a request asks for before it is sent.
///
/// ```
/// use std::time::Duration;
/// use tollway_upstream::budget::{Claim, Priority};
/// use tollway_upstream::profile::Route;
///
/// let claim = Claim::new(Route::new("GET", "/users/:id", ""))
///     .priority(Priority::High)
///     .patience(Duration::from_secs(5));
/// # let _ = claim;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Claim {
    /// Where the request goes.
    pub route: Route,
    /// Who asks.
    pub client: u64,
    /// The client's share relative to the other clients'; zero counts as one.
    pub weight: u32,
    /// Which requests it may overtake.
    pub priority: Priority,
    /// How long it may wait, if there is an end to it.
    pub patience: Option<Duration>,
    /// Bytes kept while it waits.
    pub bytes: u64,
    /// What it takes from each dimension.
    pub costs: Costs,
}

impl Claim {
    /// A claim for one request to `route`, that waits as long as it takes.
    pub fn new(route: Route) -> Self {
        let costs = *route.costs();
        let (client, weight, priority) = (0, 1, Priority::Normal);
        Self { route, client, weight, priority, patience: None, bytes: 0, costs }
    }

    /// Who asks: waiting requests of different clients take clock. By default all are one client,
    /// and requests go in the order in which they came.
    pub fn client(self, client: u64) -> Self {
        Self { client, ..self }
    }

    /// As [`Self::client`], by a name of any length.
    pub fn client_named(self, name: &str) -> Self {
        self.client(fingerprint(name))
    }

    /// The client's share relative to the other clients'; zero counts as one.
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Which requests it may overtake.
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// How long it may wait; it is refused at once if it would have to wait longer.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Bytes kept in memory while it waits, counted against the bound on them.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// What it takes from the dimension of that name, such as an estimate of its tokens.
    ///
    /// ```
    /// use tollway_upstream::budget::Claim;
    /// use tollway_upstream::profile::Profile;
    ///
    /// let profile = Profile::builtin("openai").expect("it is shipped");
    /// let route = profile.route("POST", "/v1/chat/completions");
    /// let claim = Claim::new(route).cost_named(&profile, "tokens", 1_200)?;
    /// # let _ = claim;
    /// # Ok::<(), tollway_upstream::budget::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the profile has no dimension of that name.
    pub fn cost_named(self, profile: &Profile, name: &str, units: u32) -> Result<Self, Refusal> {
        match profile.dimension_index(name) {
            Some(index) => Ok(self.cost(index, units)),
            None => Err(Refusal { reason: Reason::NoSuchDimension, wait: None }),
        }
    }

    /// What it takes from the dimension of that index, such as an estimate of its tokens.
    pub fn cost(mut self, dimension: usize, units: u32) -> Self {
        if let Some(cost) = self.costs.get_mut(dimension) {
            *cost = units;
        }
        self
    }
}

/// Why a request must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Its turn would come later than it can wait.
    Patience,
    /// Too many requests wait already.
    QueueFull,
    /// Too many bytes wait already.
    BytesFull,
    /// There is no room to remember another bucket.
    BucketsFull,
    /// It costs more than the limit ever allows.
    TooCostly,
    /// It states what it takes of a dimension that the profile does not have.
    NoSuchDimension,
    /// The queue was drained by hand.
    Drained,
    /// The ledger cannot be reached.
    Unavailable,
}

/// The answer that a request must not be sent, and when it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The estimated wait after which the same claim has a chance; none if no wait helps.
    pub wait: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Patience => "its turn comes later than it can wait",
            Reason::QueueFull => "too many requests wait already",
            Reason::BytesFull => "too many bytes wait already",
            Reason::BucketsFull => "too many buckets are in use",
            Reason::TooCostly => "it costs more than the limit ever allows",
            Reason::NoSuchDimension => "the profile has no dimension of the name that it states",
            Reason::Drained => "the queue was drained",
            Reason::Unavailable => "the ledger cannot be reached",
        })?;
        match self.wait {
            Some(wait) => write!(f, "; try again in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}
