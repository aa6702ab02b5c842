//! Tokens of leases as clients see them: what names the lease, and a signature that nobody can
//! guess.
//!
//! ```text
//!   7.2.5f1c09aa3be0d2417c6e8b90f3a1d254
//!   | |  `-- 128 bits of HMAC-SHA256 over queue, job and attempt, with the secret of the queues
//!   | `-- attempt
//!   `-- job
//! ```
//!
//! Without it, whoever may work on a queue could acknowledge the jobs of others by counting. The
//! secret is kept with the queues, so a token holds after a restart and at every node that shares
//! them.

use std::fmt;

use ring::hmac::{HMAC_SHA256, Key, sign};
use subtle::ConstantTimeEq as _;
use tollway_queue::{JobId, LeaseToken, QueueName};

/// Bytes of the signature that are shown: a guess is right once in 2^128.
const SHOWN_BYTES: usize = 16;

/// What signs the tokens of leases.
#[derive(Clone)]
pub(crate) struct Signer(Key);

/// What a token that a client shows names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The lease, as the client tells it.
    pub named: LeaseToken,
    /// Whether the signature is right.
    is_genuine: bool,
}

impl Signer {
    /// What signs with `secret`.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(Key::new(HMAC_SHA256, secret))
    }

    /// The token of a lease.
    pub(crate) fn token(&self, queue: &QueueName, lease: LeaseToken) -> String {
        use fmt::Write as _;
        let mut token = format!("{}.{}.", lease.id.0, lease.attempt);
        for byte in self.signature(queue, lease) {
            // Writing into a text in memory cannot fail.
            let _ = write!(token, "{byte:02x}");
        }
        token
    }

    /// Reads a token; `None` if it is none.
    pub(crate) fn read(&self, queue: &QueueName, token: &str) -> Option<Shown> {
        let (id, rest) = token.split_once('.')?;
        let (attempt, _) = rest.split_once('.')?;
        let named = LeaseToken { id: JobId(id.parse().ok()?), attempt: attempt.parse().ok()? };
        let right = self.token(queue, named);
        let is_genuine = bool::from(right.as_bytes().ct_eq(token.as_bytes()));
        Some(Shown { named, is_genuine })
    }

    fn signature(&self, queue: &QueueName, lease: LeaseToken) -> [u8; SHOWN_BYTES] {
        let name = queue.as_str().as_bytes();
        let (id, attempt) = (lease.id.0.to_be_bytes(), lease.attempt.to_be_bytes());
        // The numbers have a fixed length: no two leases are written the same.
        let signature = sign(&self.0, &[&id[..], &attempt, name].concat());
        let mut shown = [0; SHOWN_BYTES];
        shown.copy_from_slice(&signature.as_ref()[..SHOWN_BYTES]);
        shown
    }
}

impl Shown {
    /// The lease to ask for. A forged token names an attempt that there never is, so that it is
    /// answered like any lease that is over.
    pub(crate) const fn lease(self) -> LeaseToken {
        match self.is_genuine {
            true => self.named,
            false => LeaseToken { id: self.named.id, attempt: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_lease_and_a_forged_one_names_none() {
        let signer = Signer::new(&[7; 32]);
        let (mail, other) = (QueueName::new("mail").unwrap(), QueueName::new("other").unwrap());
        let lease = LeaseToken { id: JobId(12), attempt: 3 };
        let token = signer.token(&mail, lease);
        assert!(token.starts_with("12.3.") && token.len() == 5 + 32, "{token}");
        assert_eq!(signer.read(&mail, &token).unwrap().lease(), lease);
        let guessed = format!("12.4.{}", &token[5..]);
        let upper = token.to_uppercase().replace('A', "B");
        for forged in ["12.3.", "12.3.00000000000000000000000000000000", &guessed, &upper] {
            let shown = signer.read(&mail, forged).unwrap();
            assert_eq!((shown.named.id, shown.lease().attempt), (JobId(12), 0), "{forged}");
        }
        assert_eq!(signer.read(&other, &token).unwrap().lease().attempt, 0, "another queue");
        let restarted = Signer::new(&[8; 32]);
        assert_eq!(restarted.read(&mail, &token).unwrap().lease().attempt, 0, "another secret");
        for text in ["", "12", "12.3", "x.3.00", "-1.3.00", "12.99999999999.00"] {
            assert_eq!(signer.read(&mail, text), None, "{text}");
        }
    }
}
