//! The profiles that are shipped.

use std::sync::{Arc, OnceLock};

use super::Profile;

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// Names and texts, by name.
        pub(super) const TEXTS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../profiles/", $name, ".toml")))),*];
    };
}

shipped! {
    "anthropic", "azure-openai", "discord", "eve-esi", "generic", "github", "gitlab", "heroku",
    "hubspot", "ietf", "ietf-old", "jira", "linear", "openai", "reddit", "riot", "shopify",
    "slack", "stripe", "twitch", "x",
}

/// The shipped profile of that name.
pub(super) fn find(name: &str) -> Option<Arc<Profile>> {
    static PROFILES: OnceLock<Vec<Arc<Profile>>> = OnceLock::new();
    let profiles = PROFILES.get_or_init(|| {
        let parsed = |(_, text): &(&str, &str)| {
            Arc::new(Profile::parse(text).expect("every shipped profile is parsed by a test"))
        };
        TEXTS.iter().map(parsed).collect()
    });
    profiles.iter().find(|profile| profile.name() == name).map(Arc::clone)
}
