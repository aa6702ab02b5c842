//! Trees of owners in a file.
//!
//! ```toml
//! [[policies]]
//! name = "llm"
//! algorithm = "shares"
//! quota = "1000/1m"
//! reclaim = "20s"               # half the time in which the burst refills, if not given
//! owners = [
//!     { key = "search", floor = "50%", ceiling = "80%" },
//!     { key = "alice", parent = "search", floor = "40%" },
//!     { key = "batch", floor = "20%" },
//! ]
//! ```
//!
//! The key of a charge says who asks. Every error names the owner's line and field.

use tollway_core::shares::{Owner, SharesError};
use tollway_core::{OnStoreError, Parameters as _, Policy};

use super::error::ConfigError;
use super::reader::{ConfigValue, Table};

/// The algorithm of policies whose keys are owners.
pub(super) const NAME: &str = "shares";

/// Whether a policy's keys are owners.
pub(super) fn are_meant(table: &Table<'_>) -> bool {
    let algorithm = table.get("algorithm").and_then(|place| place.text().ok());
    algorithm.is_some_and(|name| name == NAME)
}

/// The policy of this name with the tree that its fields describe; `None` if something is wrong,
/// which is noted.
pub(super) fn policy(table: &Table<'_>, name: Option<&str>) -> Option<Policy> {
    let quota = table.quota();
    let mut reclaim = None;
    table.set("reclaim", &mut reclaim, |place| place.duration().map(Some));
    let places = table.tell(table.need("owners").and_then(|place| place.list()));
    // All of them are read before any is done without.
    let owners: Vec<_> = places?.iter().map(owner).collect();
    let owners = owners.into_iter().collect::<Option<Vec<_>>>()?;
    let tree = owners.iter().map(|(owner, _)| owner.clone()).collect();
    let policy = Policy::shared(name?, quota?, reclaim, tree);
    table.tell(policy.map_err(|error| at(table, &owners, &error)))
}

/// Says that no part of a tree can be enforced in the store's place.
pub(super) fn check_store_error(table: &Table<'_>, on_store_error: OnStoreError) {
    let is_local =
        matches!(on_store_error, OnStoreError::Local { .. } | OnStoreError::AllowThenLocal { .. });
    if let Some(place) = table.get("on_store_error").filter(|_| is_local) {
        place.note(
            "no part of a tree of owners can stand for it; expected allow, deny or unavailable",
        );
    }
}

fn owner<'a>(place: &ConfigValue<'a>) -> Option<(Owner, Table<'a>)> {
    let table = place.tell(place.table())?;
    let key = table.tell(table.need("key").and_then(|place| place.text()));
    let parent = table.text("parent");
    let part = |name| table.get(name).map(|place| table.tell(place.parsed()));
    let (floor, ceiling) = (part("floor"), part("ceiling"));
    table.finish();
    // What is there and wrong is noted; only what is not there is left out.
    let given = |part: Option<Option<_>>| part.map_or(Some(None), |read| read.map(Some));
    let owner = Owner { key: key?, parent, floor: given(floor)?, ceiling: given(ceiling)? };
    Some((owner, table))
}

/// Where the error is.
fn at(table: &Table<'_>, owners: &[(Owner, Table<'_>)], error: &SharesError) -> ConfigError {
    let wrong = error.owner().and_then(|index| owners.get(index)).map_or(table, |(_, owner)| owner);
    match wrong.get(error.field()) {
        Some(place) => place.wrong(error.problem()),
        None => wrong.wrong(format!("{}: {}", error.field(), error.problem())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::{Config, Mistakes, Overrides};
    use crate::metrics::Metrics;

    const HEAD: &str = "[[policies]]\nname = \"llm\"\nalgorithm = \"shares\"\nquota = \"60/1m\"\n";

    fn load(text: &str) -> Result<Config, Mistakes> {
        let file = ("a.toml".to_owned(), text.to_owned());
        Config::from_texts(&[file], &Overrides::default(), &Metrics::default())
    }

    fn wrong(owners: &str) -> String {
        load(&format!("{HEAD}owners = [\n{owners}\n]\n")).unwrap_err().to_string()
    }

    #[test]
    fn a_tree_of_owners_is_read_with_its_floors_and_ceilings() {
        let text = format!(
            "{HEAD}reclaim = \"20s\"\nowners = [\n\
             {{ key = \"alice\", parent = \"team\", floor = \"50%\" }},\n\
             {{ key = \"team\", floor = \"50%\", ceiling = \"80%\" }},\n]\n"
        );
        let config = load(&text).unwrap();
        let policy = config.rules.policy("llm").unwrap();
        let shares = policy.shares().unwrap();
        assert_eq!(shares.reclaim(), Duration::from_secs(20));
        // A quarter of one a second, and what that refills in half of the time.
        assert_eq!(shares.floor(0), Some("1/4s burst 2".parse().unwrap()));
        assert_eq!(shares.floor(1), Some("1/2s burst 10".parse().unwrap()));
        assert_eq!(shares.ceiling(1), Some("1/1250ms burst 48".parse().unwrap()));
        assert_eq!(policy.algorithm().to_string(), "60/1m, shared by owners");
    }

    #[test]
    fn what_is_wrong_with_an_owner_is_told_with_its_line_and_field() {
        for (owners, expected) in [
            (
                "{ key = \"a\", floor = \"60%\" },\n{ key = \"b\", floor = \"60%\" },",
                "a.toml:7: policies[0].owners[1].floor: the floors below the quota add up to 120.00%; \
                 expected at most 100%",
            ),
            (
                "{ key = \"team\" },\n{ key = \"b\", parent = \"taem\" },",
                "a.toml:7: policies[0].owners[1].parent: unknown owner \"taem\"; \
                 did you mean \"team\"?",
            ),
            (
                "{ key = \"a\", parent = \"b\" },\n{ key = \"b\", parent = \"a\" },",
                "a.toml:6: policies[0].owners[0].parent: \"a\" is below itself",
            ),
            (
                "{ key = \"a\", floor = \"0.5\" },",
                "a.toml:6: policies[0].owners[0].floor: \
                 expected more than 0% and at most 100%, for example 40% or 33.33%",
            ),
            (
                "{ key = \"a\", flor = \"5%\" },",
                "a.toml:6: policies[0].owners[0].flor: unknown field; did you mean floor?",
            ),
            ("", "a.toml:5: policies[0].owners: expected 1 to 500, not 0"),
        ] {
            assert_eq!(wrong(owners), expected);
        }
    }

    #[test]
    fn what_a_tree_cannot_have_is_refused() {
        let owners = "owners = [{ key = \"a\", floor = \"50%\" }]\n";
        let wrong = |more: &str| load(&format!("{HEAD}{owners}{more}\n")).unwrap_err();
        let told = wrong("on_store_error = \"local\"").to_string();
        assert!(told.contains("policies[0].on_store_error: no part of a tree"), "{told}");
        let told = wrong("split = 4").to_string();
        assert!(told.contains("policies[0].split: unknown field"), "{told}");
        let told = wrong("reclaim = \"2m\"").to_string();
        assert!(told.contains("policies[0].reclaim: the floors would keep 60 units"), "{told}");
        let told = load(HEAD).unwrap_err().to_string();
        assert!(told.contains("owners is missing"), "{told}");
        let told = load("[[policies]]\nname = \"a\"\nalgorithm = \"share\"").unwrap_err();
        assert!(told.to_string().contains("did you mean \"shares\"?"), "{told}");
    }
}
