//! One response of the server: read, checked, put in force as a whole or refused as a whole.

use bytes::Bytes;
use prost::Message;
use ring::digest::{Context, SHA256};
use tracing::{debug, info, warn};

use super::TYPE_URL;
use super::messages::{Any, RateLimitConfig, ResponseHead, ResponseResources};
use super::parts;
use super::status::{Accepted, Digest, Status};
use super::stream::Broken;
use crate::config::pushed::{self, PushedRules};
use crate::service::Service;

/// The most messages in one response: descriptors, their limits, what is in their metadata.
const MESSAGES_MAX: usize = 100_000;
/// The longest version or nonce: both are sent back.
const NAME_BYTES_MAX: usize = 4 * 1024;
/// The longest reason that a server is told.
const REASON_CHARS_MAX: usize = 2_000;

/// A response that can be answered, whatever is in it.
pub(super) struct Push<'a> {
    message: &'a Bytes,
    version: String,
    nonce: String,
    type_url: String,
}

/// What is said to a response.
pub(super) struct Answered {
    /// Which response it is.
    pub nonce: String,
    /// What is wrong with it, if it is refused.
    pub refused: Option<String>,
}

/// What reading a response came to.
enum Outcome {
    /// Its rules are in force already.
    InForce,
    /// Other rules, and what stands for their resources.
    Rules(Digest, PushedRules),
    /// What is wrong, and what stands for its resources, if they could be read.
    Refused(Option<Digest>, String),
}

impl<'a> Push<'a> {
    /// Reads what tells one response from others.
    ///
    /// # Errors
    ///
    /// If it cannot be read so far: then there is nothing that could be answered.
    pub(super) fn read(message: &'a Bytes) -> Result<Self, Broken> {
        let head = ResponseHead::decode(&**message);
        let head = head.map_err(|error| Broken::Malformed(format!("a response: {error}")))?;
        let ResponseHead { version_info: version, type_url, nonce } = head;
        if version.len().max(nonce.len()) > NAME_BYTES_MAX {
            let problem = format!("its version or nonce is longer than {NAME_BYTES_MAX} bytes");
            return Err(Broken::Malformed(format!("a response: {problem}")));
        }
        Ok(Self { message, version, nonce, type_url })
    }

    /// Puts the rules in force if all of them are right; what to answer, if anything.
    pub(super) fn put_in_force(
        self,
        status: &Status,
        service: &Service,
    ) -> Result<Option<Answered>, Broken> {
        if self.type_url != TYPE_URL {
            // An answer would ask for this type.
            status.ignored();
            debug!(type_url = %visible(&self.type_url), "xDS: resources that nobody asked for");
            return Ok(None);
        }
        let refused = match self.rules(status, service) {
            Outcome::InForce => {
                status.unchanged(self.version);
                None
            }
            Outcome::Rules(resources, rules) => {
                self.replace(status, service, resources, rules);
                None
            }
            Outcome::Refused(resources, reason) => {
                let reason: String = visible(&reason).chars().take(REASON_CHARS_MAX).collect();
                let (version, now) = (visible(&self.version), service.clock().now());
                // Servers may send again what was refused, without end: it is told once.
                if status.refused(&version, &reason, resources, now) {
                    warn!(version, %reason, "xDS: refused, the rules in force stay");
                    service.metrics().forget_unused();
                }
                Some(reason)
            }
        };
        Ok(Some(Answered { nonce: self.nonce, refused }))
    }

    fn replace(&self, status: &Status, service: &Service, resources: Digest, rules: PushedRules) {
        let (domains, notes) = (rules.domains.len(), rules.notes.len());
        let note = rules.notes.first().map(ToString::to_string);
        service.replace_pushed(rules.domains);
        info!(version = visible(&self.version), domains, "xDS: rules in force");
        if let Some(note) = note {
            warn!(notes, first = %visible(&note), "xDS: pushed, and without effect");
        }
        let rules = service.enforcer.rules();
        if let Some(domain) = rules.overruled().next() {
            let (domains, first) = (rules.overruled().count(), visible(domain));
            warn!(domains, first, "xDS: not in force, since files have these domains");
        }
        let (version, at) = (self.version.clone(), service.clock().now());
        status.accepted(Accepted { version, domains, resources, at });
    }

    /// Reads the resources, unless what came of them is known.
    fn rules(&self, status: &Status, service: &Service) -> Outcome {
        if parts::count(self.message, MESSAGES_MAX) > MESSAGES_MAX {
            let reason = format!("the response holds more than {MESSAGES_MAX} messages");
            return Outcome::Refused(None, reason);
        }
        let resources = match ResponseResources::decode(&**self.message) {
            Ok(response) => response.resources,
            Err(error) => return Outcome::Refused(None, format!("the response: {error}")),
        };
        let digest = digest_of(&resources);
        if status.has_resources(&digest) {
            return Outcome::InForce;
        }
        let read = || {
            let configs = configs(resources)?;
            pushed::read(&configs, service.metrics(), service.settings().manner)
        };
        match status.refused_before(&digest).map_or_else(read, Err) {
            Ok(rules) => Outcome::Rules(digest, rules),
            Err(reason) => Outcome::Refused(Some(digest), reason),
        }
    }
}

fn configs(resources: Vec<Any>) -> Result<Vec<RateLimitConfig>, String> {
    let read = |(index, Any { type_url, value }): (usize, Any)| {
        if type_url != TYPE_URL {
            return Err(format!("resource {index} is a {type_url:?}; expected {TYPE_URL}"));
        }
        RateLimitConfig::decode(value).map_err(|error| format!("resource {index}: {error}"))
    };
    resources.into_iter().enumerate().map(read).collect()
}

fn digest_of(resources: &[Any]) -> Digest {
    let mut context = Context::new(&SHA256);
    for Any { type_url, value } in resources {
        for part in [type_url.as_bytes(), value] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Text of the server, for logs: nothing in it ends a line or moves a cursor.
pub(super) fn visible(text: &str) -> String {
    const CHARS_MAX: usize = 4_000;
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    text.chars().take(CHARS_MAX).map(shown).collect()
}
