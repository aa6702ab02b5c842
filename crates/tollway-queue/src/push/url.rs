//! URLs that are called, and what a job may fill in.
//!
//! **Invariants.** What a job fills in stays in its segment of the path, or in its value of the
//! query: it is percent-encoded, and a path in which a segment would mean "here" or "up" is
//! refused. Scheme, host and port come from the configuration, or from its list of origins.

use http::Uri;

use super::template::{JobValues, Template};
use crate::error::Error;

/// The longest URL that is called.
const LEN_MAX: usize = 8_192;

/// A URL that each job fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UrlTemplate {
    /// `https://api.example.com`, without places.
    origin: String,
    path: Template,
    query: Option<Template>,
}

impl UrlTemplate {
    /// Reads a URL with places in its path and query.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let at = url.find("://").map_or(0, |at| at + 3);
        let end = url[at..].find(['/', '?', '#']).map_or(url.len(), |end| at + end);
        let (origin, rest) = url.split_at(end);
        if origin.contains('{') {
            return Err(Error::invalid(
                "the scheme, host and port of a push target cannot be filled in from the job",
            ));
        }
        if rest.contains('#') {
            return Err(Error::invalid("a push target has no fragment (#)"));
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let path = Template::parse(if path.is_empty() { "/" } else { path })?;
        let query = query.map(Template::parse).transpose()?;
        let template = Self { origin: origin.to_owned(), path, query };
        // With every place filled by a letter it must be a URL.
        let example = template.path.fill_alike("x");
        let query = template.query.as_ref().map(|query| query.fill_alike("x"));
        uri(&join(origin, &example, query.as_deref()))?;
        stays(&example).map_err(Error::invalid)?;
        Ok(template)
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> Result<Origin, Error> {
        Origin::of(&uri(&self.origin)?)
    }

    /// The URL for `job`.
    pub(super) fn fill(&self, job: &JobValues<'_>) -> Result<Uri, String> {
        // As it is for a server that decodes first and looks where that leads afterwards.
        stays(&self.path.fill(job, |path, value| {
            if value.is_empty() {
                return Err("a value for the path of the URL is empty".to_owned());
            }
            path.push_str(value);
            Ok(())
        })?)?;
        let put = |out: &mut String, value: &str| {
            encode(out, value);
            Ok(())
        };
        let path = self.path.fill(job, put)?;
        let query = self.query.as_ref().map(|query| query.fill(job, put)).transpose()?;
        let url = join(&self.origin, &path, query.as_deref());
        if url.len() > LEN_MAX {
            return Err(format!("the URL is longer than {LEN_MAX} bytes"));
        }
        url.parse().map_err(|error| format!("the URL cannot be called: {error}"))
    }
}

/// Scheme, host in lower case, and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin(String, String, u16);

impl Origin {
    /// Reads `https://api.example.com:8443`, without a path.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let read = uri(text)?;
        if read.path_and_query().is_some_and(|rest| rest.as_str() != "/") || text.ends_with('/') {
            let message =
                format!("{text} is not an origin; expected for example https://example.com");
            return Err(Error::invalid(message));
        }
        Self::of(&read)
    }

    pub(super) fn of(uri: &Uri) -> Result<Self, Error> {
        let no_port = |scheme: &str| if scheme == "https" { 443 } else { 80 };
        match (uri.scheme_str(), uri.host()) {
            (Some(scheme), Some(host)) => {
                let port = uri.port_u16().unwrap_or_else(|| no_port(scheme));
                Ok(Self(scheme.to_owned(), host.to_ascii_lowercase(), port))
            }
            _ => Err(Error::invalid("a push target is an http:// or https:// URL with a host")),
        }
    }
}

fn join(origin: &str, path: &str, query: Option<&str>) -> String {
    let mark = if query.is_some() { "?" } else { "" };
    format!("{origin}{path}{mark}{}", query.unwrap_or_default())
}

/// A URL that can be called.
pub(super) fn uri(url: &str) -> Result<Uri, Error> {
    let uri: Uri = url
        .parse()
        .map_err(|error| Error::invalid(format!("the push target is not a URL: {error}")))?;
    let is_http = ["http", "https"].contains(&uri.scheme_str().unwrap_or_default());
    if !is_http || uri.host().unwrap_or_default().is_empty() {
        return Err(Error::invalid("a push target is an http:// or https:// URL with a host"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Error::invalid("a push target has no user in its URL"));
    }
    Ok(uri)
}

/// Writes a value so that it means itself wherever it stands in a URL.
fn encode(out: &mut String, value: &str) {
    use std::fmt::Write;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Whether no segment of a path is `.` or `..`, also for a server that takes a backslash for a
/// slash, or leaves out what follows a semicolon.
fn stays(path: &str) -> Result<(), String> {
    let leaves = |segment: &str| {
        let name = segment.split([';', '?', '#']).next();
        matches!(name, Some("." | ".."))
    };
    match path.split(['/', '\\']).any(leaves) {
        true => Err("a segment of the URL's path would be . or ..".to_owned()),
        false => Ok(()),
    }
}
