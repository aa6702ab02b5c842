//! How many files and sockets the process may have open, and how many of them are for connections.
//!
//! ```text
//!   0 ........................................................ limit of the process
//!   | connections of any front ........ | of HTTP alone | files, stores, queues |
//!                                         probes get in   never a connection
//! ```
//!
//! Connections are bounded below the limit, so that accepting never fails for want of a descriptor:
//! a probe that cannot connect takes a healthy service for dead.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most that is kept for HTTP alone when other fronts have used up the rest.
const HTTP_KEPT_MAX: usize = 32;
/// What is kept for everything else that is open: a share of the limit, between these two.
const OTHERS: (usize, usize) = (32, 256);

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Over all fronts, HTTP included.
    pub all: usize,
    /// Over all fronts, beyond which only HTTP is accepted.
    pub any_front: usize,
}

impl Places {
    /// As many as are `wanted` and the `limit` on open files leaves room for.
    fn within(wanted: usize, limit: Option<u64>) -> Self {
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let others = (limit / 8).clamp(OTHERS.0, OTHERS.1);
        let all = wanted.min(limit.saturating_sub(others)).max(1);
        Self { all, any_front: all - (all / 8).min(HTTP_KEPT_MAX) }
    }
}

/// Raises the limit on open files as far as the process may, and says how many connections fit.
pub(crate) fn make_places(wanted: usize) -> Places {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Where it is refused, the old limit holds.
    let _ = setrlimit(Resource::Nofile, raised);
    let places = Places::within(wanted, getrlimit(Resource::Nofile).current);
    if places.all < wanted {
        tracing::info!(
            connections = places.all,
            wanted,
            "the limit on open files leaves room for fewer connections (ulimit -n, LimitNOFILE)"
        );
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stay_below_the_limit_on_open_files_and_some_are_for_http_alone() {
        let places = |wanted, limit| {
            let Places { all, any_front } = Places::within(wanted, limit);
            (all, any_front)
        };
        assert_eq!(places(20_000, None), (20_000, 19_968));
        assert_eq!(places(20_000, Some(1_048_576)), (20_000, 19_968));
        assert_eq!(places(20_000, Some(1_024)), (896, 864));
        assert_eq!(places(20_000, Some(64)), (32, 28));
        assert_eq!(places(20_000, Some(8)), (1, 1), "one is served whatever the limit");
        assert_eq!(places(2, None), (2, 2), "so few are not divided");
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        make_places(1);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
