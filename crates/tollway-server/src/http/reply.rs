//! A reply on its way: status, header fields, body.

use tollway_core::fields::{Denied, Dialect, Report, Standing};
use tollway_core::{Decision, Verdict};

use crate::rules::Ask;

/// A reply.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// The status code.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// Header fields beside those about the body.
    pub fields: Vec<(&'static str, String)>,
    /// The body, unless a constant is.
    pub body: Vec<u8>,
    /// A body that is part of the binary: never copied per answer.
    constant: Option<&'static [u8]>,
    scratch: String,
}

/// The media type of JSON.
pub(super) const JSON: &str = "application/json";

impl Reply {
    /// Empties the reply for the next request; its memory stays.
    pub(crate) fn clear(&mut self) {
        self.status = 200;
        self.content_type = JSON;
        self.fields.clear();
        self.body.clear();
        self.constant = None;
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        self.constant.unwrap_or(&self.body)
    }

    /// Makes a part of the binary the body.
    pub(crate) const fn set_constant(&mut self, body: &'static [u8]) {
        self.constant = Some(body);
    }

    /// Writes the head of an HTTP/1.1 response.
    pub(super) fn write_head(&self, date: &str, is_last: bool, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(number.format(self.status).as_bytes());
        out.push(b' ');
        let status = http::StatusCode::from_u16(self.status).ok();
        let reason = status.and_then(|status| status.canonical_reason()).unwrap_or("Status");
        out.extend_from_slice(reason.as_bytes());
        let mut field = |name: &str, value: &str| {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
        };
        field("content-type", self.content_type);
        // Not Modified has no body, and its length would be taken for that of the file.
        if self.status != 304 {
            field("content-length", number.format(self.body().len()));
        }
        field("date", date);
        for (name, value) in &self.fields {
            field(name, value);
        }
        if is_last {
            field("connection", "close");
        }
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Takes the body, as bytes that may be sent later; whether they are a part of the binary.
    pub(super) fn take_body(&mut self) -> (bytes::Bytes, bool) {
        match self.constant {
            Some(constant) => (bytes::Bytes::from_static(constant), true),
            None => (std::mem::take(&mut self.body).into(), false),
        }
    }

    /// Makes `value` the body.
    pub(super) fn write_json(&mut self, value: &serde_json::Value) {
        self.body.extend_from_slice(value.to_string().as_bytes());
    }

    /// Adds the rate-limit header fields of a verdict on `asks`. What cannot deny is left out: a
    /// client that heeds the fields would wait for it.
    pub(crate) fn add_limits(
        &mut self,
        dialect: Dialect,
        asks: &[Ask<'_>],
        verdict: &Verdict,
        epoch_ns: u64,
    ) {
        let (one, many);
        let standings: &[Standing<'_>] = match (asks, verdict.decisions()) {
            ([ask], [decision]) if ask.may_deny() => {
                one = [standing(ask, decision)];
                &one
            }
            _ => {
                let pairs = asks.iter().zip(verdict.decisions());
                let told = pairs.filter(|(ask, _)| ask.may_deny());
                many = told.map(|(ask, decision)| standing(ask, decision)).collect::<Vec<_>>();
                &many
            }
        };
        let retry = verdict.retry().and_then(|retry| retry.after());
        let denied = verdict.denied_by().map(|by| {
            let by = asks.iter().take(by).filter(|ask| ask.may_deny()).count();
            Denied { by, retry }
        });
        let epoch = std::time::Duration::from_nanos(epoch_ns);
        let report = Report { standings, denied, epoch };
        let Self { fields, scratch, .. } = self;
        dialect.emit(&report, scratch, |field, value| {
            fields.push((field.name(), value.to_owned()));
        });
    }
}

fn standing<'a>(ask: &Ask<'a>, decision: &Decision) -> Standing<'a> {
    Standing::new(ask.charge.policy, decision.snapshot())
}
