//! Names that may stand in a configuration once only.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use super::work;

/// The names so far. A set, since every name would be compared with every other in a list.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Name>);

impl Names {
    /// Adds a name; false if it is there already.
    pub(super) fn add(&mut self, name: &str) -> bool {
        self.0.insert(Name(name.to_owned()))
    }
}

/// A name whose comparisons are counted in tests.
#[derive(Debug, Eq)]
struct Name(String);

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        work::done(1);
        self.0 == other.0
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        work::done(1);
        self.0.hash(state);
    }
}
