//! The page for people on the proxy's own address, and the figures that it shows beside buckets.
//!
//! Four files in the binary, without a build step, that ask nobody but the proxy. They say nothing
//! by themselves, so where a token is set they are there for everybody and ask for it; without one
//! they need what all pages need. Figures need the token in either case. Markup that an upstream or
//! a client sends stays text: the script makes text nodes only, and the policy lets nothing else
//! run.

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::header::{HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::State;
use crate::body::Body;
use crate::events;
use crate::refusal::{json_response, text_response};

/// Path, kind, text.
const FILES: [(&str, &str, &str); 4] = [
    ("/admin/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/admin/page.js", "text/javascript; charset=utf-8", include_str!("../page/page.js")),
    ("/admin/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("/admin/palette.css", "text/css; charset=utf-8", tollway_http::PALETTE),
];

/// Nothing from elsewhere, nothing inline, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FIELDS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // Asked again each time: a new version is seen at once.
    (CACHE_CONTROL, "no-cache"),
];

/// Whether a path is one of the page's files.
pub(super) fn has(path: &str) -> bool {
    FILES.iter().any(|(known, ..)| *known == path)
}

/// One of the page's files.
pub(super) fn file(path: &str) -> Response<Body> {
    let Some((_, kind, text)) = FILES.iter().find(|(known, ..)| *known == path) else {
        return text_response(StatusCode::NOT_FOUND, "no such page\n");
    };
    let mut response = text_response(StatusCode::OK, *text);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in FIELDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// What the page shows beside buckets.
pub(super) fn status(state: &State) -> Response<Body> {
    // What changed a moment ago must not be missing.
    events::gather(state);
    let [limited, not_forwarded] = state.metrics.refusals().map(|counts| {
        let counts = counts.into_iter().map(|(word, count)| (word.to_owned(), json!(count)));
        Value::Object(counts.collect::<Map<_, _>>())
    });
    let store = state.store.get().map(|store| {
        let outage = store.current();
        json!({
            "up": outage.is_none(),
            "since_ms": outage.as_ref().map(|outage| outage.since.as_nanos() / 1_000_000),
            "reason": outage.map(|outage| outage.reason.to_string()),
        })
    });
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "profile": state.profile.name(),
        "upstream": { "url": state.upstream.to_string(), "up": state.events.is_upstream_up() },
        "store": store,
        "requests": state.room.requests(),
        "waiting": state.labelled.waiting(),
        "credentials": state.accounts.count(),
        "connections": state.connections(),
        "invalid_remaining": state.guard.as_ref().map(|guard| guard.remaining()),
        "limited": limited,
        "not_forwarded": not_forwarded,
        "changes": state.events.recent(),
    });
    let mut response = json_response(StatusCode::OK, &status);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else_and_has_nothing_inline() {
        for (path, _, text) in FILES {
            assert!(!text.contains("http:") && !text.contains("https:"), "{path}");
            assert!(!text.contains("innerHTML") && !text.contains("style="), "{path}");
        }
        assert!(!FILES[0].2.contains("<script>") && !FILES[0].2.contains("<style>"));
        let total: usize = FILES.iter().map(|(.., text)| text.len()).sum();
        assert!(total < 40_000, "{total} bytes");
    }
}
