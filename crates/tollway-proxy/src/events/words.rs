//! The words in which people are told of a change, without secrets.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use tollway_core::outages::OutageEvent;
use tollway_upstream::budget::{Change, ChangeKind};
use tollway_upstream::profile::Scope;

use super::Event;
use crate::credential::{CredentialId, Verdict};

/// Longer texts are cut.
const SHOWN_MAX: usize = 160;
/// A segment of a path that is so long and has a digit may be a token.
const TOKEN_MIN: usize = 20;

/// What changed in the budgets of a credential.
pub(super) fn of_change(credential: CredentialId, change: &Change) -> Event {
    let bucket = Some(&*change.bucket).filter(|bucket| *bucket != "*").map(shown);
    let route = Some(&*change.route).filter(|route| !route.is_empty()).map(shown);
    let (credential, count) = (Some(credential.short()), u64::from(change.count));
    let event = Event { credential, bucket, route, count, ..Event::default() };
    match &change.what {
        ChangeKind::Learned { dimension, limit, window } => Event {
            what: "bucket learned",
            dimension: Some(dimension.clone()),
            limit: Some(*limit),
            window_ms: Some(millis(*window)),
            ..event
        },
        ChangeKind::Silent => Event { what: "bucket without a told limit", ..event },
        ChangeKind::LimitChanged { dimension, before, limit } => Event {
            what: "limit changed",
            dimension: Some(dimension.clone()),
            before: Some(*before),
            limit: Some(*limit),
            ..event
        },
        ChangeKind::Refused { scope, wait } => Event {
            what: "refused by the upstream",
            is_warning: true,
            scope: Some(scope_word(*scope)),
            wait_ms: Some(millis(*wait)),
            ..event
        },
        ChangeKind::Blocked { wait } => Event {
            what: "credential blocked",
            is_warning: true,
            wait_ms: Some(millis(*wait)),
            ..event
        },
        ChangeKind::Freed { after } => {
            Event { what: "credential free again", lasted_ms: Some(millis(*after)), ..event }
        }
        ChangeKind::Dropped => Event { what: "more changes than are told", ..event },
        _ => Event { what: "changed", ..event },
    }
}

/// What the upstream's 401s mean for a credential.
pub(super) fn of_verdict(id: CredentialId, verdict: Verdict) -> Event {
    let event = Event { credential: Some(id.short()), count: 1, ..Event::default() };
    match verdict {
        Verdict::Locked(wait) => Event {
            what: "credential blocked",
            is_warning: true,
            reason: Some("the upstream answered 401".to_owned()),
            wait_ms: Some(millis(wait)),
            ..event
        },
        Verdict::Unlocked => Event { what: "credential free again", ..event },
    }
}

/// The beginning or the end of an outage of the store.
pub(super) fn of_outage(turn: &OutageEvent) -> Event {
    match turn {
        OutageEvent::Began(outage) => Event {
            what: "the store does not answer, budgets are kept here alone",
            is_warning: true,
            reason: Some(outage.reason.to_string()),
            count: 1,
            ..Event::default()
        },
        OutageEvent::Ended(outage, lasted) => Event {
            what: "the store answers again",
            lasted_ms: Some(millis(*lasted)),
            unanswered: Some(outage.unanswered),
            count: 1,
            ..Event::default()
        },
    }
}

/// The word for whom a refusal concerns.
pub(super) fn scope_word(scope: Option<Scope>) -> &'static str {
    match scope {
        Some(Scope::User) => "user",
        Some(Scope::Shared) => "shared",
        Some(Scope::Global) => "global",
        None => "unsaid",
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A bucket or a route, cut, and without what looks like a token in a path.
pub(crate) fn shown(text: &str) -> String {
    let veil = |segment: &str| match looks_like_token(segment) {
        true => {
            let hash = digest(&SHA256, segment.as_bytes());
            let start = hash.as_ref()[..4].iter().map(|byte| format!("{byte:02x}"));
            format!("~{}", start.collect::<String>())
        }
        false => segment.to_owned(),
    };
    // The first part of a path is before its first slash: the upstream's name, or the method.
    let mut parts = text.split('/');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let words: Vec<String> = part.split(' ').map(veil).collect();
        text = text + "/" + &words.join(" ");
    }
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn looks_like_token(segment: &str) -> bool {
    segment.len() >= TOKEN_MIN && segment.bytes().any(|byte| byte.is_ascii_digit())
}
