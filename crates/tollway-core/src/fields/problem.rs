//! The problem+json body (RFC 9457) of a refused request, with `violated-policies`.

use alloc::string::String;
use alloc::vec::Vec;

use super::digits::push_number;

/// The problem types the draft registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// The requester spent its quota: 429.
    QuotaExceeded,
    /// The service is short of capacity for everybody: 503.
    TemporaryReducedCapacity,
    /// The requester behaves suspiciously: 429.
    AbnormalUsageDetected,
}

impl Problem {
    /// The media type of [`body`](Self::body).
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// The registered type URI.
    pub const fn type_uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::TemporaryReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::AbnormalUsageDetected => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
        }
    }

    /// The registered title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::TemporaryReducedCapacity => "Temporary Reduced Capacity",
            Self::AbnormalUsageDetected => "Abnormal Usage Detected",
        }
    }

    /// The registered status code.
    pub const fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsageDetected => 429,
            Self::TemporaryReducedCapacity => 503,
        }
    }

    /// The JSON body: type, title, `status`, and the names of the policies that said no, each once.
    ///
    /// `status` is an argument because it must equal the status really sent (403 behind nginx).
    ///
    /// ```
    /// use tollway_core::fields::Problem;
    /// assert_eq!(
    ///     Problem::QuotaExceeded.body(429, ["daily"]),
    ///     r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#
    ///         .to_owned()
    ///         + r#""title":"Quota Exceeded","status":429,"violated-policies":["daily"]}"#
    /// );
    /// ```
    pub fn body<'a>(self, status: u16, violated: impl IntoIterator<Item = &'a str>) -> String {
        self.write(status, violated, None)
    }

    /// The same with a sentence about this occurrence.
    pub fn detailed<'a>(
        self,
        status: u16,
        violated: impl IntoIterator<Item = &'a str>,
        detail: &str,
    ) -> String {
        self.write(status, violated, Some(detail))
    }

    fn write<'a>(
        self,
        status: u16,
        violated: impl IntoIterator<Item = &'a str>,
        detail: Option<&str>,
    ) -> String {
        let mut json = String::with_capacity(192);
        json.push_str("{\"type\":");
        push_json(&mut json, self.type_uri());
        json.push_str(",\"title\":");
        push_json(&mut json, self.title());
        json.push_str(",\"status\":");
        push_number(&mut json, u64::from(status));
        if let Some(detail) = detail {
            json.push_str(",\"detail\":");
            push_json(&mut json, detail);
        }
        json.push_str(",\"violated-policies\":[");
        let mut named = Vec::new();
        for policy in violated {
            if named.contains(&policy) {
                continue;
            }
            if !named.is_empty() {
                json.push(',');
            }
            push_json(&mut json, policy);
            named.push(policy);
        }
        json.push_str("]}");
        json
    }
}

/// Appends a JSON string. Only what RFC 8259 forbids bare is escaped.
fn push_json(json: &mut String, text: &str) {
    json.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            '\0'..='\x1f' => {
                json.push_str("\\u00");
                for nibble in [char as u8 >> 4, char as u8 & 0xf] {
                    json.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
                }
            }
            _ => json.push(char),
        }
    }
    json.push('"');
}
