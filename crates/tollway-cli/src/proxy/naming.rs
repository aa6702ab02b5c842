//! The keys that a proxy shares with others: how buckets are named, and what keys begin with.

use anyhow::{Result, bail};
use clap::ValueEnum;
use tollway_proxy::CredentialId;
use tollway_upstream::profile::Profile;
use tollway_upstream::shared::{Naming, Prefix, SpectaclesVersion};

/// Longer prefixes would be cut, and two of them might become one.
const PREFIX_MAX: usize = 200;

/// The keys that a proxy shares with others.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Keys {
    /// How buckets are named in the store: learned from the upstream, or as Spectacles clients do,
    /// to share the keys of a fleet in which they still run
    #[arg(long, value_enum, value_name = "NAMING", default_value_t)]
    naming: NamingArg,

    /// The prefix of keys in the store, the same as that of the credential's other clients (without
    /// the colon); all requests through this proxy then share one set of budgets. In a cluster it
    /// needs a hash tag, such as {bot1} [default: nothing with --naming spectacles, otherwise a
    /// hash of each credential]
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,

    /// The version of the Spectacles specification that the other clients follow; the first has
    /// no way to write that there is no limit
    #[arg(long, value_enum, value_name = "VERSION", default_value_t)]
    spectacles_version: VersionArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum NamingArg {
    #[default]
    Learned,
    Spectacles,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum VersionArg {
    #[default]
    First,
    Later,
}

impl Keys {
    /// What the fleet of proxies with this profile is called, within the prefix if there is one:
    /// whoever names a prefix may have rights to nothing else.
    pub(super) fn fleet(&self, profile: &Profile) -> String {
        let profile = profile.name();
        match &self.prefix {
            Some(prefix) => format!("{prefix}:tollway:fleet:{profile}"),
            None => format!("{{tollway:fleet:{profile}}}"),
        }
    }

    /// Whether these keys can be used in the store.
    pub(super) fn check(&self, store: &str) -> Result<()> {
        let is_default = self.naming == NamingArg::Learned && self.prefix.is_none();
        if is_default && self.spectacles_version == VersionArg::First {
            return Ok(());
        }
        if store == "memory" {
            bail!("--naming, --prefix and --spectacles-version need a --store that is shared");
        }
        if self.spectacles_version != VersionArg::First && self.naming != NamingArg::Spectacles {
            bail!("--spectacles-version needs --naming spectacles");
        }
        let prefix = self.prefix.as_deref().unwrap_or_default();
        if prefix.len() > PREFIX_MAX || prefix.chars().any(char::is_control) {
            bail!("invalid --prefix: expected up to {PREFIX_MAX} bytes without control characters");
        }
        if prefix.ends_with(':') {
            bail!("invalid --prefix {prefix:?}: the colon is added, write it without");
        }
        let scheme = store.split("://").next().unwrap_or_default();
        if scheme.ends_with("+cluster") && !self.is_per_credential() && !has_hash_tag(prefix) {
            bail!(
                "--prefix needs a hash tag in a cluster, so that all keys of a bucket are on one \
                 server: for example {{bot1}}"
            );
        }
        Ok(())
    }

    pub(super) fn naming(&self) -> Naming {
        match self.naming {
            NamingArg::Learned => Naming::Learned,
            NamingArg::Spectacles => Naming::Spectacles,
        }
    }

    pub(super) fn spectacles_version(&self) -> SpectaclesVersion {
        match self.spectacles_version {
            VersionArg::First => SpectaclesVersion::First,
            VersionArg::Later => SpectaclesVersion::Later,
        }
    }

    /// What the keys of a credential begin with.
    pub(super) fn prefix_of(&self, credential: CredentialId) -> Prefix {
        match self.prefix.as_deref() {
            // The hash tag keeps a credential's keys on one server of a cluster.
            None if self.is_per_credential() => Prefix::named(&format!("{{{credential}}}")),
            None | Some("") => Prefix::none(),
            Some(name) => Prefix::named(name),
        }
    }

    fn is_per_credential(&self) -> bool {
        self.prefix.is_none() && self.naming == NamingArg::Learned
    }
}

/// Whether a cluster hashes a part of the key alone, and not all of it.
fn has_hash_tag(key: &str) -> bool {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: Option<&str>, naming: NamingArg) -> Keys {
        let prefix = prefix.map(str::to_owned);
        Keys { naming, prefix, spectacles_version: VersionArg::First }
    }

    #[test]
    fn keys_of_others_need_a_store_and_a_prefix_that_fits_it() {
        use NamingArg::{Learned, Spectacles};
        let (redis, cluster) = ("redis://h", "redis+cluster://h");
        let wrong = |keys: Keys, store: &str| keys.check(store).unwrap_err().to_string();
        assert!(wrong(keys(None, Spectacles), "memory").contains("--store"));
        assert!(wrong(keys(Some("bot1"), Learned), "memory").contains("--store"));
        assert!(wrong(keys(None, Spectacles), cluster).contains("{bot1}"));
        for prefix in ["bot1", "{}bot1", "bot1}"] {
            assert!(wrong(keys(Some(prefix), Spectacles), cluster).contains("hash tag"));
        }
        assert!(wrong(keys(Some("bot1:"), Spectacles), redis).contains("without"));
        assert!(wrong(keys(Some("a\nb"), Spectacles), redis).contains("control"));
        assert!(wrong(keys(Some(&"x".repeat(201)), Spectacles), redis).contains("200"));
        let later = Keys { spectacles_version: VersionArg::Later, ..keys(Some("bot1"), Learned) };
        assert!(wrong(later, redis).contains("--naming spectacles"));
        for (prefix, naming, store) in [
            (None, Learned, "memory"),
            (None, Learned, cluster),
            (None, Spectacles, redis),
            (Some("bot1"), Spectacles, redis),
            (Some("{bot1}"), Spectacles, cluster),
        ] {
            keys(prefix, naming).check(store).unwrap();
        }
    }

    #[test]
    fn keys_begin_as_those_of_the_others_do() {
        use NamingArg::{Learned, Spectacles};
        let id = CredentialId::parse("00112233445566778899aabbccddeeff").unwrap();
        let prefix = |name, naming| keys(name, naming).prefix_of(id).as_str().to_owned();
        assert_eq!(prefix(Some("bot1"), Spectacles), "bot1:");
        assert_eq!(prefix(None, Spectacles), "");
        assert_eq!(prefix(Some(""), Spectacles), "");
        assert_eq!(prefix(None, Learned), "{00112233445566778899aabbccddeeff}:");
    }
}
