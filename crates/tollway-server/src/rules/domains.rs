//! The domains in force: those of files, and those that a control plane has pushed.
//!
//! A domain that a file has is the file's: whoever runs this process has the last word. What is
//! pushed for it is kept, and is in force once the file no longer has it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Rules;
use crate::descriptors::Domain;

type ByName = Arc<HashMap<String, Domain>>;

/// Domains by name, by where they come from. A clone shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    of_files: ByName,
    pushed: ByName,
}

impl Domains {
    /// Those of files; of those with one name, the last counts.
    pub(super) fn new(domains: Vec<Domain>) -> Self {
        Self { of_files: by_name(domains), pushed: ByName::default() }
    }
}

fn by_name(domains: Vec<Domain>) -> ByName {
    Arc::new(domains.into_iter().map(|domain| (domain.name().to_owned(), domain)).collect())
}

impl Rules {
    /// The descriptor rules of this domain.
    pub(crate) fn domain(&self, name: &str) -> Option<&Domain> {
        let Domains { of_files, pushed } = &self.domains;
        of_files.get(name).or_else(|| pushed.get(name))
    }

    /// The domains that have descriptor rules.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        let Domains { of_files, pushed } = &self.domains;
        let alone = pushed.values().filter(|domain| !of_files.contains_key(domain.name()));
        of_files.values().chain(alone)
    }

    /// These rules with the domains that were pushed, in place of those before.
    pub(crate) fn with_pushed(&self, domains: Vec<Domain>) -> Self {
        let of_files = Arc::clone(&self.domains.of_files);
        Self { domains: Domains { of_files, pushed: by_name(domains) }, ..self.clone() }
    }

    /// These rules with what was pushed to others.
    pub(crate) fn with_pushed_of(&self, other: &Self) -> Self {
        let of_files = Arc::clone(&self.domains.of_files);
        let pushed = Arc::clone(&other.domains.pushed);
        Self { domains: Domains { of_files, pushed }, ..self.clone() }
    }

    /// The domains that were pushed and are not in force: a file has them.
    pub(crate) fn overruled(&self) -> impl Iterator<Item = &str> {
        let Domains { of_files, pushed } = &self.domains;
        pushed.keys().filter(|name| of_files.contains_key(*name)).map(String::as_str)
    }
}
