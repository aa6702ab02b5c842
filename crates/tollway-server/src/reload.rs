//! Reloading: the rules on disk put in force as a whole, or refused as a whole; certificates
//! likewise.
//!
//! Rules are reloaded (policies, descriptors, lists, shadow mode), and so are queues, limits that
//! they share, where their jobs are pushed to, tokens, certificates and their keys. Where to
//! listen, limits on connections, whether TLS is spoken at all and whether a token is needed no
//! more belong to the process and need a restart; of these, what concerns TLS and tokens is told.
//! States belong to their policy's name: one that is the same after a reload goes on where it was,
//! and of one whose numbers have changed each key is carried over at its next request.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tracing::{error, info, warn};

use crate::auth::Auth;
use crate::config::{Config, Tls, files_now};
use crate::logs::note;
use crate::service::Service;
use crate::xds::Xds;

/// Reads the files again: rules, tokens, and certificates. On an error the rules and tokens in
/// force stay, certificates that are wrong leave those in force, and either is remembered to be
/// told.
///
/// Takes as long as the files are: not to be called where others wait.
///
/// # Errors
///
/// If the files are wrong; the text says where and what would be right.
pub fn reload(service: &Service) -> Result<(), String> {
    let origin = &service.origin;
    if origin.files.is_empty() {
        return Err("the service was started without a file: there is nothing to reload".to_owned());
    }
    let _alone = service.reloading();
    // A file that is being written is empty first, and then begins: what was read of it counts only
    // if nothing has changed meanwhile. Whoever watches the files sees the change, and reloads
    // again.
    let before = Sighting::of(&files_now(&origin.files));
    let metrics = service.metrics();
    let loaded = Config::load_with(&origin.given, &origin.files, &origin.overrides, metrics);
    if before.has_empty() || before.has_moved_on(&before.again(&files_now(&origin.files))) {
        let wrong = "a file was empty or changed while it was read; it is read again when it rests";
        warn!("{wrong}");
        service.refuse_reload(wrong.to_owned());
        return Err(wrong.to_owned());
    }
    match loaded.map_err(|wrong| wrong.brief()).and_then(|config| kept_as_told(service, config)) {
        Ok(config) => {
            let policies = config.rules.rules().len();
            note(&config.notes);
            replace_certificates(service, config.tls.as_ref());
            service.stale.set_restart(needing_restart(service, &config));
            replace_tokens(service, config.settings.auth);
            service.replace_rules(config.rules);
            info!(policies, queues = config.queues.queues.len(), "rules reloaded");
            if let Some(queues) = service.queues() {
                queues.reload(config.queues);
            }
            Ok(())
        }
        Err(wrong) => {
            error!(%wrong, "reload refused, the old rules stay in force");
            let in_force = service.certificates().map(|certificates| certificates.files());
            replace_certificates(service, in_force.as_ref());
            service.refuse_reload(wrong.clone());
            Err(wrong)
        }
    }
}

/// The configuration, if this process can keep what it says is durable: never silently less.
fn kept_as_told(service: &Service, config: Config) -> Result<Config, String> {
    let is_here = service.enforcer.memory().is_some() && service.enforcer.durable().is_none();
    let durable = config.rules.durable().next().filter(|_| is_here).map(|name| {
        format!("policy {name:?} is durable, and this process began without a durable_file")
    });
    durable.map_or(Ok(config), |wrong| Err(format!("{wrong}: restart it")))
}

/// Reads the certificates in force again; those that are wrong are remembered, and change nothing
/// else.
pub fn reload_certificates(service: &Service) {
    let _alone = service.reloading();
    let in_force = service.certificates().map(|certificates| certificates.files());
    replace_certificates(service, in_force.as_ref());
}

fn replace_certificates(service: &Service, tls: Option<&Tls>) {
    // To begin or to end with TLS needs a restart, which is told there.
    let (Some(certificates), Some(tls)) = (service.certificates(), tls) else { return };
    match certificates.replace(tls) {
        Ok(()) => {
            info!("certificates read");
            service.stale.set_certificates(None);
        }
        Err(wrong) => {
            error!(%wrong, "certificates refused, the old ones stay in force");
            service.stale.set_certificates(Some(wrong.to_string()));
        }
    }
}

/// Puts the tokens in force. That none is needed any more is not: the service may listen to others,
/// as the file said when it started.
fn replace_tokens(service: &Service, auth: Auth) {
    let has_changed = **service.auth() != auth;
    if has_changed && !auth.is_open() {
        info!(tokens = ?auth, "tokens replaced");
        service.replace_auth(auth);
    }
}

/// What the files say that only a restart puts in force; the log is told each time.
fn needing_restart(service: &Service, config: &Config) -> Vec<&'static str> {
    let (tls, auth) = (config.tls.as_ref(), &config.settings.auth);
    let opens = auth.is_open() && !service.auth().is_open();
    // States in this process are not split, which is told where the files are read.
    let is_shared = service.enforcer.memory().is_none();
    let splits = || config.rules.splits().map(|(name, parts)| (name.to_owned(), parts));
    let splits_anew = is_shared && splits().collect::<BTreeMap<_, _>>() != service.splits;
    let plan = &config.queues;
    let moves_queues = service.queues().is_some_and(|queues| !queues.has_store_of(plan));
    let told: Vec<_> = [
        (moves_queues, "queues stay in their store: another queue_store needs a restart"),
        (opens, "tokens stay in force: to serve without any needs a restart"),
        (
            tls.is_none() && service.certificates().is_some(),
            "TLS goes on: to speak without it needs a restart",
        ),
        (
            tls.is_some() && service.certificates().is_none(),
            "TLS is off: turning it on needs a restart",
        ),
        (
            config.xds.as_ref() != service.xds().map(Xds::settings),
            "xds stays as it is: another [xds] needs a restart",
        ),
        (splits_anew, "keys stay split as they are: to split them otherwise needs a restart"),
    ]
    .into_iter()
    .filter_map(|(is_so, text)| is_so.then_some(text))
    .collect();
    told.iter().for_each(|text| warn!("{text}"));
    told
}

/// A file that was changed so lately may change again within the same tick of its clock.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Of a longer file only so much is read to tell whether it changed; configurations are shorter.
const READ_MAX: u64 = 16 << 20;

/// What files looked like when last seen; changes when one of them does.
///
/// Looked at through links: Kubernetes replaces a file by turning a link. Times and lengths alone
/// would miss a file put in the place of another of the same time and length, as reproducible
/// images have them; so its number on the disk, the time of its last change of any kind, and what
/// is in it count, too. It is read only if one of the others differs, or is so new that it proves
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting(Vec<Option<Seen>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    /// Whether it is a file, and no pipe or device.
    is_file: bool,
    /// Of what is in the file.
    hash: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    number: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Sighting {
    /// Looks at the files for the first time.
    pub fn of<P: AsRef<Path>>(files: &[P]) -> Self {
        Self(files.iter().map(|file| look(file.as_ref(), None)).collect())
    }

    /// Whether one of the files has nothing in it.
    fn has_empty(&self) -> bool {
        self.0.iter().flatten().any(|seen| seen.stamp.length == 0 && seen.is_file)
    }

    /// Whether one of the files is another at the later look. A pipe changes by being read.
    fn has_moved_on(&self, later: &Self) -> bool {
        let pairs = self.0.iter().zip(&later.0);
        let is_other_list = self.0.len() != later.0.len();
        is_other_list
            || pairs.into_iter().any(|(before, after)| match (before, after) {
                (Some(before), Some(after)) if !before.is_file && !after.is_file => false,
                _ => before != after,
            })
    }

    /// These files, and then others.
    pub(crate) fn followed_by(&self, others: &Self) -> Self {
        Self([&self.0[..], &others.0].concat())
    }

    /// Looks at the same files again.
    pub(crate) fn again<P: AsRef<Path>>(&self, files: &[P]) -> Self {
        let before = self.0.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        Self(files.iter().zip(before).map(|(file, seen)| look(file.as_ref(), seen)).collect())
    }
}

fn look(file: &Path, before: Option<&Seen>) -> Option<Seen> {
    let metadata = std::fs::metadata(file).ok()?;
    let stamp = Stamp {
        device: metadata.dev(),
        number: metadata.ino(),
        length: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    match before.filter(|seen| seen.stamp == stamp && is_settled(&stamp)) {
        Some(seen) => Some(seen.clone()),
        // Nothing is read from a pipe or a device: it would be gone.
        None => {
            let is_file = metadata.is_file();
            Some(Seen { hash: if is_file { hash(file)? } else { 0 }, is_file, stamp })
        }
    }
}

fn is_settled(stamp: &Stamp) -> bool {
    let changed = Duration::from_secs(u64::try_from(stamp.changed.0).unwrap_or(0));
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
    since.is_ok_and(|since| since > SETTLED_AFTER)
}

fn hash(file: &Path) -> Option<u64> {
    let mut file = std::fs::File::open(file).ok()?.take(READ_MAX);
    let (mut hasher, mut buffer) = (DefaultHasher::new(), [0; 16 << 10]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hasher.finish()),
            count => hasher.write(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("tollway-reload-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A file with these words, as old as every other that this makes.
    fn file(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn a_file_replaced_by_one_of_equal_time_and_length_is_noticed() {
        let folder = folder("replaced");
        let (path, new) = (folder.join("t.toml"), folder.join("new"));
        file(&path, "quota 1");
        let seen = Sighting::of(&[&path]);
        assert_eq!(seen, seen.again(&[&path]));
        file(&new, "quota 2");
        fs::rename(&new, &path).unwrap();
        assert_ne!(seen, seen.again(&[&path]));
        fs::remove_file(&path).unwrap();
        assert_ne!(seen, seen.again(&[&path]));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_written_in_place_within_one_tick_is_noticed() {
        let folder = folder("in-place");
        let path = folder.join("t.toml");
        file(&path, "quota 1");
        let mut seen = Sighting::of(&[&path]);
        // As if the clock of the file had not moved between the two: all but the content agrees.
        file(&path, "quota 2");
        let stamp = Sighting::of(&[&path]).0[0].clone().unwrap().stamp;
        seen.0[0].as_mut().unwrap().stamp = stamp;
        assert_ne!(seen, seen.again(&[&path]));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_empty_or_changes_while_it_is_read_is_not_taken() {
        let folder = folder("being-written");
        let path = folder.join("t.toml");
        file(&path, "quota 1");
        let before = Sighting::of(&[&path]);
        assert!(!before.has_empty() && !before.has_moved_on(&before.again(&[&path])));
        file(&path, "");
        assert!(Sighting::of(&[&path]).has_empty(), "as a writer leaves it at first");
        assert!(before.has_moved_on(&before.again(&[&path])));
        fs::remove_dir_all(folder).unwrap();
    }
}
