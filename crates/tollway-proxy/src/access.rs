//! Who is let in before a request is forwarded: no web pages of others, and no admin's token.
//!
//! A page in a browser on this machine reaches a proxy on loopback. What it sends would be counted
//! by the upstream as ours: without a credential it spends the budget of invalid requests, and
//! every bot behind the proxy is locked out. So requests that a browser marks as another origin's
//! are refused, and so is a name that is not this machine's where the listener is this machine's
//! alone (a name can be made to resolve to loopback). Nothing is sent or counted for them.
//!
//! The admin's token is a secret between an operator and the proxy. A path that is mistyped must
//! not hand it to the upstream, nor a form in which clients write a token: as it is, as the name or
//! the password of `Basic`, or with `%` escapes in a target. Bodies are not looked at.

use http::header::{HOST, ORIGIN};
use http::{HeaderName, Request};
use subtle::ConstantTimeEq as _;
use tollway_core::fields::{Hosts, is_foreign_page, sf};

use crate::State;
use crate::fields::percent_decoded;
use crate::refusal::Cause;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request may come in at all; `is_loopback` if its listener is this machine's alone.
pub(super) fn admit<B>(
    request: &Request<B>,
    hosts: &Hosts,
    is_loopback: bool,
) -> Result<(), Cause> {
    let headers = request.headers();
    let field = |name: HeaderName| headers.get(name).map(|value| value.as_bytes());
    // HTTP/2 names the host in the target.
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = field(HOST).or(authority);
    if is_foreign_page(host, field(ORIGIN), field(SEC_FETCH_SITE)) {
        return Err(Cause::CrossSite("sent by a web page of another origin"));
    }
    // A browser always names a host; what names none is no browser.
    if is_loopback && host.is_some_and(|host| !hosts.has(host)) {
        return Err(Cause::CrossSite("the Host is not a name of this machine; --host adds one"));
    }
    Ok(())
}

/// Whether some field or the target holds the admin's token anywhere, as it is or written
/// otherwise.
pub(super) fn has_admin_token<B>(state: &State, request: &Request<B>) -> bool {
    let Some(token) = state.settings.admin.token.as_ref().filter(|token| !token.is_empty()) else {
        return false;
    };
    let token = token.as_bytes();
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let fields = request.headers().values().map(|value| value.as_bytes());
    fields.chain([target.as_bytes()]).any(|text| {
        holds(text, token) || text.contains(&b'%') && holds(&percent_decoded(text), token)
    })
}

/// Whether `token` stands in `text`, or in what a word of it is the base64 of.
fn holds(text: &[u8], token: &[u8]) -> bool {
    let has = |text: &[u8]| text.windows(token.len()).any(|shown| bool::from(shown.ct_eq(token)));
    let is_symbol = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    let words = text.split(|byte| !is_symbol(byte));
    has(text) || words.filter_map(decoded).any(|decoded| has(&decoded))
}

/// What a word is the base64 of, in either alphabet.
fn decoded(word: &[u8]) -> Option<Vec<u8>> {
    let standard = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    };
    sf::base64(&word.iter().map(standard).collect::<Vec<u8>>())
}
