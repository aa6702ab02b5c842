//! A request, wherever it was read from, and the call of whatever answers it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tollway_core::spelling::likely;

use super::presence::Client;
use super::problem::Trouble;
use super::reply::Reply;
use crate::auth::Role;
use crate::service::Service;
use crate::worker::Worker;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its address; loopback for a Unix socket.
    pub address: IpAddr,
    /// Whether it came by a Unix socket, which no web page can reach.
    pub is_unix: bool,
}

impl Peer {
    /// Somebody at an address.
    pub(crate) const fn at(address: IpAddr) -> Self {
        Self { address, is_unix: false }
    }

    /// Somebody on a Unix socket.
    pub(crate) const UNIX: Self = Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), is_unix: true };
}

/// A request whose body is all there.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query, if any.
    pub query: Option<&'a str>,
    /// The host that it names, by `Host` or `:authority`.
    pub host: Option<&'a [u8]>,
    /// The header fields.
    pub fields: &'a dyn Fields,
    /// The body.
    pub body: &'a [u8],
    /// Who sent it.
    pub peer: Peer,
    /// Whether who sent it is still there.
    pub client: &'a dyn Client,
}

/// A request that is being answered.
pub(crate) struct Call<'a> {
    /// The worker of its connection.
    pub worker: &'a Worker,
    /// What is asked.
    pub request: &'a Request<'a>,
    /// What stands in the path in place of its route's parameters, in order.
    pub parameters: [&'a str; 2],
    /// What is answered.
    pub reply: &'a mut Reply,
}

impl<'a> Call<'a> {
    /// The service that is asked.
    pub(crate) fn service(&self) -> &'a Arc<Service> {
        &self.worker.service
    }

    /// The body, read as JSON.
    pub(crate) fn body<T: Deserialize<'a>>(&self) -> Result<T, Trouble> {
        read(self.request.body)
    }

    /// The body, read as JSON; `{}` if there is none.
    pub(crate) fn body_or_empty<T: Deserialize<'a>>(&self) -> Result<T, Trouble> {
        read(if self.request.body.is_empty() { b"{}" } else { self.request.body })
    }

    /// The role of whoever asks.
    pub(crate) fn role(&self) -> Option<Role> {
        self.service().auth().role_of_field(self.request.fields.field("authorization"))
    }

    /// Whose token it is, for the log.
    pub(crate) fn who(&self) -> String {
        let auth = self.service().auth();
        auth.name_of_field(self.request.fields.field("authorization")).to_owned()
    }

    /// A number in the query within `bounds`; `default` if it is not there.
    pub(crate) fn query_number(
        &self,
        name: &str,
        default: usize,
        bounds: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, Trouble> {
        let Some(raw) = self.request.parameter(name) else { return Ok(default) };
        let number = raw.parse().ok().filter(|number| bounds.contains(number));
        let (least, most) = (bounds.start(), bounds.end());
        number.ok_or_else(|| Trouble::bad(format!("{name} must be {least} to {most}")))
    }

    /// Makes `json` the body of the reply.
    pub(crate) fn write(&mut self, json: &Value) -> Result<(), Trouble> {
        self.reply.write_json(json);
        Ok(())
    }
}

/// Header fields by name.
pub(crate) trait Fields {
    /// The first value of the field of this lower-case name.
    fn field(&self, name: &str) -> Option<&[u8]>;

    /// Every value of the field of this lower-case name, in order.
    fn lines(&self, name: &str) -> Vec<&[u8]>;
}

impl Fields for http::HeaderMap {
    fn field(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(http::HeaderValue::as_bytes)
    }

    fn lines(&self, name: &str) -> Vec<&[u8]> {
        self.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
    }
}

impl Fields for &[httparse::Header<'_>] {
    fn field(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    fn lines(&self, name: &str) -> Vec<&[u8]> {
        let named = self.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value).collect()
    }
}

impl<'a> Request<'a> {
    /// The value of a parameter of the query, percent-decoding left out.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        let pairs = self.query?.split('&');
        pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
    }

    /// The value of a parameter of the query with its escapes decoded.
    pub(crate) fn query_text(&self, name: &str) -> Result<Option<String>, Trouble> {
        let Some(raw) = self.parameter(name) else { return Ok(None) };
        let spaced = raw.replace('+', " ");
        let wrong = || Trouble::bad(format!("{name} must be percent-encoded UTF-8"));
        decoded(&spaced).map(|text| Some(text.into_owned())).ok_or_else(wrong)
    }

    /// Refuses a query with a parameter that is not among `known`, or that is there twice.
    pub(crate) fn expect_query(&self, known: &[&str]) -> Result<(), Trouble> {
        let pairs = self.query.unwrap_or_default().split('&');
        let names = pairs.filter(|pair| !pair.is_empty());
        let names = names.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
        let mut found: Vec<&str> = Vec::new();
        for name in names {
            if found.contains(&name) {
                return Err(Trouble::bad(format!("the query has {name} more than once")));
            }
            if !known.contains(&name) {
                let remedy = match (likely(known.iter().copied(), name), known) {
                    (Some(likely), _) => format!("did you mean {likely}?"),
                    (None, []) => "this path has none".to_owned(),
                    (None, _) => format!("known are: {}", known.join(", ")),
                };
                return Err(Trouble::bad(format!("unknown query parameter {name}; {remedy}")));
            }
            found.push(name);
        }
        Ok(())
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Trouble> {
    serde_json::from_slice(body).map_err(|error| Trouble::bad(format!("the body: {error}")))
}

/// A path segment with its percent-escapes decoded; `None` if they are broken.
pub(crate) fn decoded(segment: &str) -> Option<Cow<'_, str>> {
    match decoded_bytes(segment)? {
        Cow::Borrowed(_) => Some(Cow::Borrowed(segment)),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

/// As [`decoded`], of bytes that need not be text.
pub(crate) fn decoded_bytes(segment: &str) -> Option<Cow<'_, [u8]>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = after;
    }
    Some(Cow::Owned(bytes))
}

/// Splits a request target that is a path into path and query.
pub(super) fn split_target(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split_and_segments_decoded() {
        assert_eq!(split_target("/a?b=1"), ("/a", Some("b=1")));
        assert_eq!(split_target("/a"), ("/a", None));
        assert_eq!(split_target("/r?u=http://x/y"), ("/r", Some("u=http://x/y")));
        assert_eq!(decoded("a%20b").as_deref(), Some("a b"));
        assert_eq!((decoded("%2"), decoded("%zz"), decoded("%ff")), (None, None, None));
    }
}
