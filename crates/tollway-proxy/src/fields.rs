//! Header fields on their way through: what ends here, what is added, what clients ask for.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRANSFER_ENCODING, UPGRADE, VIA,
};

use tollway_core::spelling::unknown;
use tollway_upstream::budget::Priority;
use tollway_upstream::profile::{Dimension, Profile};

const DEADLINE: HeaderName = HeaderName::from_static("x-tollway-deadline");
const PRIORITY: HeaderName = HeaderName::from_static("x-tollway-priority");
const CLIENT: HeaderName = HeaderName::from_static("x-tollway-client");
const COST: HeaderName = HeaderName::from_static("x-tollway-cost");

/// The longest wait that a client can ask for.
const PATIENCE_MAX: Duration = Duration::from_secs(86_400);
/// The longest name of a client.
const CLIENT_BYTES_MAX: usize = 128;
/// A longer name of a dimension is cut where it is told that there is none such.
const NAME_SHOWN_MAX: usize = 64;

/// Fields that concern one connection only, whether `Connection` names them or not.
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    TE,
    UPGRADE,
];

/// What a client asks of the line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestOptions {
    pub(super) patience: Option<Duration>,
    pub(super) priority: Priority,
    pub(super) client: Option<String>,
    /// What the request takes from dimensions of the profile, by their places in it.
    pub(super) costs: Vec<(usize, u32)>,
}

impl RequestOptions {
    /// Reads and removes the fields that are meant for the proxy.
    ///
    /// # Errors
    ///
    /// Says which field cannot be read: a deadline that is ignored would be a broken promise.
    pub(super) fn take(
        headers: &mut HeaderMap,
        profile: &Profile,
    ) -> Result<Self, Cow<'static, str>> {
        let mut options = Self::default();
        if let Some(value) = headers.remove(DEADLINE) {
            options.patience =
                Some(seconds(&value).ok_or("x-tollway-deadline: seconds, as in 2.5")?);
        }
        if let Some(value) = headers.remove(PRIORITY) {
            options.priority = match value.as_bytes() {
                b"high" => Priority::High,
                b"normal" => Priority::Normal,
                b"low" => Priority::Low,
                _ => return Err("x-tollway-priority: high, normal or low".into()),
            };
        }
        if let Some(value) = headers.remove(CLIENT) {
            let text = value.to_str().ok().filter(|text| text.len() <= CLIENT_BYTES_MAX);
            options.client = Some(text.ok_or("x-tollway-client: up to 128 characters")?.to_owned());
        }
        for value in headers.get_all(COST) {
            for item in value.to_str().unwrap_or_default().split(',') {
                options.costs.push(cost(item, profile)?);
            }
        }
        headers.remove(COST);
        let mut dimensions: Vec<usize> = options.costs.iter().map(|(index, _)| *index).collect();
        dimensions.sort_unstable();
        if dimensions.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("x-tollway-cost: a dimension is there twice".into());
        }
        Ok(options)
    }
}

/// Makes a request's fields those of the next connection. Those of `kept` go on whatever the sender
/// says: a credential that is counted here is shown to the upstream.
pub(super) fn forward_request(headers: &mut HeaderMap, kept: &[HeaderName]) {
    let wants_trailers = headers.get_all(TE).iter().any(|value| names(value, "trailers"));
    strip(headers, kept);
    headers.remove(PROXY_AUTHORIZATION);
    // The client sets it to the upstream's name.
    headers.remove(HOST);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers.append(VIA, HeaderValue::from_static("1.1 tollway"));
}

/// Makes a response's fields those of the client's connection.
pub(super) fn forward_response(headers: &mut HeaderMap) {
    strip(headers, &[]);
    headers.remove(PROXY_AUTHENTICATE);
}

/// Bytes that a head takes while its request waits.
pub(super) fn head_bytes(target: &str, headers: &HeaderMap) -> u64 {
    let lines = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
    (target.len() + 256 + lines.sum::<usize>()) as u64
}

/// Removes what ends at this connection, and what the sender said ends here.
fn strip(headers: &mut HeaderMap, kept: &[HeaderName]) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| !kept.contains(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

pub(super) fn names(value: &HeaderValue, wanted: &str) -> bool {
    let text = value.to_str().unwrap_or_default();
    let mut items = text.split(',').map(|item| item.split(';').next().unwrap_or_default().trim());
    items.any(|item| item.eq_ignore_ascii_case(wanted))
}

/// `tokens=1200`: the place of the dimension, and the units.
fn cost(item: &str, profile: &Profile) -> Result<(usize, u32), Cow<'static, str>> {
    const FORM: &str = "x-tollway-cost: a dimension and a whole number, as in tokens=1200";
    let (name, units) = item.split_once('=').ok_or(FORM)?;
    let units = units.trim();
    let is_whole = !units.is_empty() && units.bytes().all(|byte| byte.is_ascii_digit());
    let units = units.parse().ok().filter(|_| is_whole).ok_or(FORM)?;
    let name: String = name.trim().chars().take(NAME_SHOWN_MAX).collect();
    let index = profile.dimension_index(&name).ok_or_else(|| {
        let known = profile.dimensions().iter().map(Dimension::name);
        format!("x-tollway-cost: {}", unknown("dimension", &name, known))
    })?;
    Ok((index, units))
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    let number: f64 = value.to_str().ok()?.trim().parse().ok()?;
    let in_range = number.is_finite() && number >= 0.0;
    in_range.then(|| Duration::from_secs_f64(number.min(PATIENCE_MAX.as_secs_f64())))
}

/// The text with every `%` and two digits after it as the byte that they mean.
pub(super) fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<2>().filter(|_| *first == b'%');
        let digits = digits.and_then(|pair| std::str::from_utf8(pair).ok());
        let escaped = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_concerns_one_connection_ends_with_it() {
        let mut map = headers(&[
            ("connection", "close, X-Secret, private-token"),
            ("x-secret", "1"),
            ("private-token", "t"),
            ("upgrade", "websocket"),
            ("te", "gzip, trailers;q=1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("host", "proxy"),
            ("accept", "*/*"),
        ]);
        forward_request(&mut map, &[HeaderName::from_static("private-token")]);
        let mut names: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "private-token", "te", "via"]);
        assert_eq!(map["te"], "trailers");
    }

    fn openai() -> std::sync::Arc<Profile> {
        Profile::builtin("openai").unwrap()
    }

    #[test]
    fn costs_are_read_by_the_names_of_the_dimensions() {
        let read = |lines: &[(&'static str, &'static str)]| {
            let mut map = headers(&[]);
            for (name, value) in lines {
                map.append(*name, HeaderValue::from_static(value));
            }
            let costs = RequestOptions::take(&mut map, &openai()).map(|options| options.costs);
            assert!(costs.is_err() || map.is_empty());
            costs
        };
        let field = "x-tollway-cost";
        assert_eq!(read(&[(field, "tokens=1200")]), Ok(vec![(1, 1_200)]));
        let several = [(field, "tokens = 7, requests=2"), (field, "project-tokens=0")];
        assert_eq!(read(&several), Ok(vec![(1, 7), (0, 2), (2, 0)]));
        for wrong in [
            "",
            "tokens",
            "1200",
            "tokens=",
            "tokens=-1",
            "tokens=+1",
            "tokens=1.5",
            "tokens=4294967296",
            "tokens=1,",
            "words=1",
            "tokens=1,tokens=2",
        ] {
            assert!(read(&[(field, wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wishes_are_read_and_not_passed_on() {
        let mut map = headers(&[("x-tollway-deadline", "2.5"), ("x-tollway-priority", "low")]);
        let options = RequestOptions::take(&mut map, &openai()).unwrap();
        assert_eq!(options.patience, Some(Duration::from_millis(2_500)));
        assert_eq!(options.priority, Priority::Low);
        assert!(map.is_empty());
        for bad in ["-1", "soon", "NaN", "inf", ""] {
            let mut map = headers(&[]);
            map.insert(DEADLINE, bad.parse().unwrap());
            assert!(RequestOptions::take(&mut map, &openai()).is_err(), "{bad}");
        }
    }
}
