//! What is kept of an answer: its status, chosen header fields, and the beginning of its body.
//!
//! All of it is the target's text: bounded, without control characters, and without the secrets
//! that the call was made with, should the target repeat them.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

/// How much of a body a reason repeats.
pub(super) const REASON_BODY_BYTES: usize = 512;
/// How much of a field's value is kept.
const FIELD_BYTES_MAX: usize = 256;

/// What is shown of answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub(super) fields: Vec<HeaderName>,
    /// Texts that are never shown.
    pub(super) hidden: Vec<Hidden>,
}

/// A text that is never shown.
#[derive(Clone)]
pub(super) struct Hidden(pub(super) String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

impl Shown {
    /// Why a job failed, from the answer to its call.
    pub(super) fn reason(&self, status: StatusCode, fields: &HeaderMap, body: &[u8]) -> String {
        let mut reason = format!("the target answered {status}");
        for (name, value) in self.kept(fields) {
            reason.push_str(&format!("; {name}: {value}"));
        }
        let body = self.text(&body[..body.len().min(REASON_BODY_BYTES)]);
        if !body.is_empty() {
            reason.push_str("; ");
            reason.push_str(&body);
        }
        reason
    }

    /// An answer as the result of its job: JSON of at most `max` bytes, the body cut as need be.
    pub(super) fn result(
        &self,
        status: StatusCode,
        fields: &HeaderMap,
        body: &[u8],
        max: usize,
    ) -> Option<Bytes> {
        let kept: Map<String, Value> =
            self.kept(fields).map(|(name, value)| (name.to_string(), value.into())).collect();
        let mut length = body.len().min(max);
        loop {
            let body = self.text(&body[..length]);
            let told = json!({"status": status.as_u16(), "headers": kept, "body": body});
            let told = told.to_string();
            if told.len() <= max {
                return Some(told.into());
            }
            if length == 0 {
                return None;
            }
            length /= 2;
        }
    }

    /// The beginning of a body as a result, without what must not be shown.
    pub(super) fn body(&self, body: Bytes) -> Option<Bytes> {
        let is_told = |hidden: &Hidden| contains(&body, hidden.0.as_bytes());
        if self.hidden.iter().any(is_told) {
            return Some(self.text(&body).into());
        }
        (!body.is_empty()).then_some(body)
    }

    fn kept<'a>(&'a self, fields: &'a HeaderMap) -> impl Iterator<Item = (&'a HeaderName, String)> {
        self.fields.iter().filter_map(|name| {
            let value = fields.get(name)?.as_bytes();
            Some((name, self.text(&value[..value.len().min(FIELD_BYTES_MAX)])))
        })
    }

    /// Bytes as text without control characters and secrets. A secret that the end cuts in two is
    /// cut as well: the end is where a body was cut by its length.
    fn text(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        for Hidden(secret) in &self.hidden {
            text = text.replace(&**secret, "[secret]");
            let ends = |from: usize| text.ends_with(&secret[..from]);
            let cut = (4..secret.len()).rev().find(|from| ends(*from));
            text.truncate(text.len() - cut.unwrap_or(0));
        }
        let escape = |letter: char| match letter {
            '\n' | '\r' | '\t' => " ".to_owned(),
            letter if letter.is_control() => letter.escape_default().to_string(),
            letter => letter.to_string(),
        };
        text.chars().map(escape).collect::<String>().trim().to_owned()
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The beginning of a body: at most `max` bytes, and what has come by `deadline`. What is known of
/// an answer must not be lost because its body does not end.
pub(super) async fn read(
    body: &mut (impl BodyExt<Data = Bytes> + Unpin),
    max: usize,
    deadline: Instant,
) -> Bytes {
    let mut kept = BytesMut::new();
    while kept.len() < max {
        let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await else { break };
        let Some(chunk) = frame.data_ref() else { continue };
        let room = max - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    kept.freeze()
}
