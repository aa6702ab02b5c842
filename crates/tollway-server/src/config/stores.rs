//! Whether what a configuration names as a store is one that can be spoken to.
//!
//! A URL is never repeated in an error: it may hold a password. Its scheme is, if it looks like
//! one.

use std::fs::File;
use std::path::Path;

use super::error::ConfigError;
use super::reader::ConfigValue;

const STORES: &str = "memory, redis://host, redis+unix:///path, redis+sentinel://host/name or \
                      redis+cluster://host (rediss for TLS), tollway://host, tollways://host or \
                      tollway+unix:///path";
const QUEUE_STORES: &str = "memory, redb:PATH, redis://host, redis+unix:///path, \
                            redis+sentinel://host/name or redis+cluster://host (rediss for TLS)";

/// Whether states can live there.
pub(super) fn check_store(text: &str) -> Result<(), String> {
    match text {
        "memory" => Ok(()),
        url => check_url(url, STORES),
    }
}

/// Whether queues can live there.
pub(super) fn check_queue_store(text: &str) -> Result<(), String> {
    match text.split_once(':') {
        None if text == "memory" => Ok(()),
        Some(("redb", path)) if !path.is_empty() => Ok(()),
        // Another Tollway shares its states, not its queues.
        Some((scheme, _)) if scheme.starts_with("tollway") => Err(unsupported(text, QUEUE_STORES)),
        _ => check_url(text, QUEUE_STORES),
    }
}

/// Whether the file of queues can be written where a place says; what is wrong if it cannot. Places
/// that are no files are not looked at.
pub(super) fn check_queue_file(text: &str) -> Result<(), String> {
    text.strip_prefix("redb:").map_or(Ok(()), |path| check_file(Path::new(path)))
}

/// Whether a file can be written, or made.
pub(super) fn check_file(path: &Path) -> Result<(), String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(format!("the folder {} does not exist; create it", folder.display()));
    }
    if path.is_dir() {
        return Err(format!("{} is a folder; expected a file in one", path.display()));
    }
    let cannot = |what: &Path, error| format!("{} cannot be written: {error}", what.display());
    if path.exists() {
        let opened = File::options().read(true).write(true).open(path);
        return opened.map(drop).map_err(|error| cannot(path, error));
    }
    // Only to write there tells whether one may: modes say nothing of read-only disks and of roots.
    let probe = folder.join(format!(".tollway-validate-{}", std::process::id()));
    File::create_new(&probe).map_err(|error| cannot(folder, error))?;
    std::fs::remove_file(&probe).map_err(|error| cannot(folder, error))
}

/// Reads a field that names a store, and says with its line what is wrong with it.
pub(super) fn place_of(
    check: fn(&str) -> Result<(), String>,
) -> impl Fn(&ConfigValue<'_>) -> Result<Option<String>, ConfigError> {
    move |place| {
        let text = place.text()?;
        check(&text).map_err(|problem| place.wrong(problem))?;
        Ok(Some(text))
    }
}

fn check_url(url: &str, right: &str) -> Result<(), String> {
    tollway_redis::check_url(url).map_err(|error| {
        let known = ["redis", "rediss", "tollway", "tollways"];
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let base = scheme.split('+').next().unwrap_or_default();
        // A known scheme has an address that is not valid: the store says what it expects.
        if known.contains(&base) { error.to_string() } else { unsupported(url, right) }
    })
}

fn unsupported(url: &str, right: &str) -> String {
    let is_scheme =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
    match url.split_once("://").filter(|(scheme, _)| scheme.len() <= 32 && is_scheme(scheme)) {
        Some((scheme, _)) => format!("{scheme}:// is not supported; expected {right}"),
        None => format!("is not a store; expected {right}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_apart_by_their_urls_and_secrets_are_not_repeated() {
        for right in ["memory", "redis://h", "rediss://u:p@h:1/2", "tollway+unix:///run/t"] {
            assert_eq!(check_store(right), Ok(()));
        }
        for right in ["memory", "redb:/var/lib/q", "redis+sentinel://a,b/main", "redis+cluster://a"]
        {
            assert_eq!(check_queue_store(right), Ok(()));
        }
        for wrong in ["memcached://x", "memroy", "redb:/x", "host:6379", "", "http://:s3cret@h"] {
            let told = check_store(wrong).unwrap_err();
            assert!(told.contains("redis://") && !told.contains("s3cret"), "{wrong}: {told}");
        }
        for wrong in ["memcached://x", "redb:", "tollway://h", "sqlite:x"] {
            let told = check_queue_store(wrong).unwrap_err();
            assert!(told.contains("redb:PATH"), "{wrong}: {told}");
        }
        assert!(check_store("redis://:s3cret@h:port").unwrap_err().contains("not valid"));
        let told = check_store("memcached://x").unwrap_err();
        assert!(told.starts_with("memcached:// is not supported; expected memory, redis://"));
    }
}
