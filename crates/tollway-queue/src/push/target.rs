//! What the configuration says about the calls that push jobs.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, Method};

use super::RESULT_BYTES_MAX;
use super::template::FieldPath;
use crate::error::Error;

/// Where jobs are pushed to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// The URL that is called, `http` or `https`; with places (`{group}`, `{id}`, `{attempt}`,
    /// `{payload.FIELD}`) in its path and query. Empty if every job names its own.
    pub url: String,
    /// The method: GET, POST, PUT, PATCH or DELETE.
    pub method: Method,
    /// Header fields that are sent.
    pub fields: Vec<(HeaderName, FieldText)>,
    /// What is sent as the body; `None` for the payload, or nothing with GET and DELETE.
    pub body: Option<PushBody>,
    /// Whether a payload may name a target of its own, at one of `origins`.
    pub allow_target: bool,
    /// The origins that a target of a job's own may have: `https://api.example.com`.
    pub origins: Vec<String>,
    /// The profile that reads the limits in answers, by its name in `tollway-upstream`.
    pub profile: Option<String>,
    /// Certificates in PEM that are trusted in place of the system's.
    pub roots_pem: Option<String>,
    /// How long a call may take.
    pub timeout: Duration,
    /// The most calls at once.
    pub concurrency: usize,
    /// The media type of payloads.
    pub content_type: String,
    /// What of a good answer is kept as the job's result.
    pub keep: Keep,
    /// Fields of answers that are kept beside the status, by [`Keep::Answer`] and in the reasons of
    /// failures.
    pub keep_fields: Vec<HeaderName>,
    /// How many bytes of a result, at most [`RESULT_BYTES_MAX`]; what is longer is cut. A queue
    /// takes results as long as its payloads may be.
    pub result_bytes: usize,
}

/// What of a good answer is kept as the job's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    #[default]
    Nothing,
    /// The beginning of its body.
    Body,
    /// Status, chosen header fields and the beginning of the body, as JSON.
    Answer,
}

/// What is sent as the body of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushBody {
    /// The payload as it is.
    Payload,
    /// Nothing.
    Nothing,
    /// A field of the payload, as JSON, or as it is if it is text: the names that lead to it, with
    /// dots between them.
    Field(String),
}

/// What a header field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldText {
    /// A text with places, as in the URL.
    Text(String),
    /// A text that nobody is shown.
    Secret(Secret),
}

/// A secret and the word before it (`Bot `, `Bearer `). It is sent, and neither shown nor logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    prefix: String,
    secret: String,
}

impl Secret {
    /// A secret; white space around it, as at the end of a file, does not count.
    ///
    /// # Errors
    ///
    /// If it is empty, or a header field cannot hold it.
    pub fn new(prefix: &str, secret: &str) -> Result<Self, Error> {
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(Error::invalid("the secret is empty"));
        }
        let is_sent = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_sent(secret) || !is_sent(prefix) {
            return Err(Error::invalid("a header field cannot hold the secret"));
        }
        Ok(Self { prefix: prefix.to_owned(), secret: secret.to_owned() })
    }

    /// What is sent.
    pub(super) fn sent(&self) -> String {
        format!("{}{}", self.prefix, self.secret)
    }

    /// What must not be shown.
    pub(super) fn hidden(&self) -> &str {
        &self.secret
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Fields that the connection, the queue or other settings decide.
const NOT_TO_SET: [&str; 12] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
    "proxy-authorization",
];

/// The most header fields of a call, and the most that are kept of an answer.
pub(super) const FIELDS_MAX: usize = 32;

impl PushTarget {
    /// A target at `url` with POST, 10 s per call, 16 calls at once and JSON payloads.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            method: Method::POST,
            fields: Vec::new(),
            body: None,
            allow_target: false,
            origins: Vec::new(),
            profile: None,
            roots_pem: None,
            timeout: Duration::from_secs(10),
            concurrency: 16,
            content_type: "application/json".to_owned(),
            keep: Keep::Nothing,
            keep_fields: Vec::new(),
            result_bytes: RESULT_BYTES_MAX,
        }
    }
}

/// A method that a call may have.
///
/// # Errors
///
/// Naming those that there are.
pub fn method(name: &str) -> Result<Method, Error> {
    match name {
        "GET" => Ok(Method::GET),
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        _ => Err(Error::invalid(format!(
            "{name:?} is not a method for a push; expected GET, POST, PUT, PATCH or DELETE"
        ))),
    }
}

/// The name of a header field that a call may set.
///
/// # Errors
///
/// If it is no name, or one that the connection, the queue or another setting decides.
pub fn field_name(name: &str) -> Result<HeaderName, Error> {
    let name: HeaderName = name
        .parse()
        .map_err(|_| Error::invalid(format!("{name:?} is not the name of a header field")))?;
    let text = name.as_str();
    if NOT_TO_SET.contains(&text) || text.starts_with("tollway-") {
        return Err(Error::invalid(format!("the field {text} cannot be set for a push")));
    }
    Ok(name)
}

impl std::str::FromStr for PushBody {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match (text, text.strip_prefix("payload.")) {
            ("payload", _) => Ok(Self::Payload),
            ("none", _) => Ok(Self::Nothing),
            (_, Some(path)) => FieldPath::parse(path).map(|_| Self::Field(path.to_owned())),
            _ => Err(Error::invalid(format!(
                "{text:?} is not a body; expected payload, none or payload.FIELD"
            ))),
        }
    }
}
