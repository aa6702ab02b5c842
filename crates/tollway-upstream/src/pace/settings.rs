//! What a pacer is told before the first answer.

use core::time::Duration;

use tollway_core::Quota;

use crate::profile::{Profile, Window};

/// How the server's quota comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refill {
    /// Told from the answers: a reset that a bucket could not have means fixed windows.
    #[default]
    Detect,
    /// Continuously, as a token bucket or GCRA.
    Continuous,
    /// All at once when a window ends.
    Window,
}

/// What a pacer is told before the first answer. The default learns everything.
///
/// Clients of one token must agree on all of this, except [`Settings::weight`] and
/// [`Settings::seed`]: rates are shared in proportion to beliefs.
///
/// ```
/// use std::time::Duration;
/// use tollway_core::Quota;
/// use tollway_upstream::pace::Settings;
///
/// let heroku = Settings::of(Quota::new(4_500, Duration::from_secs(3_600))?).weight(2);
/// assert_eq!(heroku.quota().map(|quota| quota.units()), Some(4_500));
/// # Ok::<(), tollway_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Settings {
    pub(super) quota: Option<Quota>,
    pub(super) refill: Refill,
    pub(super) reserve: Option<u64>,
    /// Zero counts as one.
    pub(super) weight: u32,
    pub(super) pause_max: Option<Duration>,
    pub(super) only_aimd: bool,
    pub(super) seed: u64,
}

impl Settings {
    /// The longest pause unless set otherwise; twice the quota's period if that is longer, but at
    /// most a day.
    pub const PAUSE_MAX: Duration = Duration::from_secs(3_600);

    /// Settings for a server whose quota is known by hand.
    ///
    /// A policy field in an answer overrides it.
    pub fn of(quota: Quota) -> Self {
        Self { quota: Some(quota), ..Self::default() }
    }

    /// Fills in what was not set by hand from what a profile states.
    ///
    /// So the quota is, in this order: what the policy field of an answer says, what was set by
    /// hand, what the profile states, and else unknown. How it comes back is what was set by hand,
    /// else what the profile states, else told from the answers.
    ///
    /// ```
    /// use tollway_upstream::pace::{Refill, Settings};
    /// use tollway_upstream::profile::Profile;
    ///
    /// let profile = Profile::builtin("heroku").expect("it is shipped");
    /// let settings = Settings::default().or_profile(&profile);
    /// assert_eq!(settings.quota().map(|quota| quota.units()), Some(4_500));
    /// ```
    pub fn or_profile(self, profile: &Profile) -> Self {
        // The first dimension that is told is the one that a pacer can go by.
        let mut dimensions = profile.dimensions().iter();
        let paced = profile.dimensions().iter().find(|of| of.is_paced);
        let Some(told) = paced.or_else(|| dimensions.find(|of| !of.is_modelled())) else {
            let stated = profile.dimensions().iter().find_map(|of| of.stated);
            return Self { quota: self.quota.or(stated), ..self };
        };
        let refill = match (self.refill, told.window) {
            (Refill::Detect, Window::Sliding) => Refill::Continuous,
            (Refill::Detect, Window::Fixed) => Refill::Window,
            (by_hand, _) => by_hand,
        };
        Self { quota: self.quota.or(told.stated), refill, ..self }
    }

    /// How the quota comes back.
    pub const fn refill(self, refill: Refill) -> Self {
        Self { refill, ..self }
    }

    /// Units to leave unspent, about one per client that shares the token.
    ///
    /// Unset it is a function of the limit: 64 of 4,500, which takes 48 clients without further
    /// ado and 250 once they have stretched it. Beyond that set it to a quarter more than there
    /// are clients, on all of them: a client with a larger reserve than the others starves.
    pub const fn reserve(self, units: u64) -> Self {
        Self { reserve: Some(units), ..self }
    }

    /// This client's share relative to the others'; zero counts as one.
    pub const fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// The longest pause, whatever the server asks for. At least a second.
    pub fn pause_max(self, pause_max: Duration) -> Self {
        Self { pause_max: Some(pause_max.max(Duration::from_secs(1))), ..self }
    }

    /// Reacts to 429s only, even if the server says more.
    ///
    /// For tokens shared with clients that do the same: beside those a ticket pacer starves.
    pub const fn only_aimd(self) -> Self {
        Self { only_aimd: true, ..self }
    }

    /// Seeds the jitter after a 429, the only random thing here. Processes should differ.
    pub const fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The quota known beforehand.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        self.quota
    }
}
