//! How a call ended, other than well.

use tollway_core::ErrorKind;

use crate::rls::Refusal;

/// A gRPC status other than OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// The code.
    pub code: Code,
    /// What to tell the caller.
    pub message: String,
}

/// Codes that are used here, by their number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The request is malformed.
    InvalidArgument = 3,
    /// The call took too long.
    DeadlineExceeded = 4,
    /// The token does not permit it.
    PermissionDenied = 7,
    /// The message is too long.
    ResourceExhausted = 8,
    /// There is no such method, or no such encoding.
    Unimplemented = 12,
    /// The service and its store do not fit together.
    Internal = 13,
    /// The store failed: the proxy's failure mode decides.
    Unavailable = 14,
    /// No token, or a wrong one.
    Unauthenticated = 16,
}

impl Status {
    /// A status with a message.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The message as `grpc-message` carries it: percent-encoded.
    pub(super) fn encoded_message(&self) -> String {
        use std::fmt::Write;
        let mut text = String::with_capacity(self.message.len());
        for byte in self.message.bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
                _ => {
                    let _ = write!(text, "%{byte:02X}");
                }
            }
        }
        text
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::new(Code::InvalidArgument, text),
            Refusal::Store(error) if error.kind() == ErrorKind::Misuse => {
                Self::new(Code::Internal, error.to_string())
            }
            Refusal::Store(error) => Self::new(Code::Unavailable, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_percent_encoded() {
        let status = Status::new(Code::Unavailable, "50 % off\né");
        assert_eq!(status.encoded_message(), "50 %25 off%0A%C3%A9");
    }
}
