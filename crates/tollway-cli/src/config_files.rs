//! Which configuration is used when no flag names one.
//!
//! ```text
//!   --config  >  TOLLWAY_CONFIG  >  ./tollway.toml
//!             >  $XDG_CONFIG_HOME/tollway/tollway.toml  >  /etc/tollway/tollway.toml
//! ```
//!
//! The first that is there counts alone: files are not merged. The file in the current folder is
//! used only if it belongs to the user of this process or to root, and if not everybody may write
//! it: whoever can put a file into a shared folder must not choose tokens and stores for others.
//! `serve` and `validate` look for files, no other command does.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::misuse::misuse;

/// Names files, with colons between them as in PATH.
const VARIABLE: &str = "TOLLWAY_CONFIG";
/// The file in the current folder.
const HERE: &str = "./tollway.toml";
/// Its name below a folder of settings.
const BELOW: &str = "tollway/tollway.toml";
/// That everybody may write a file.
const WRITABLE_BY_ALL: u32 = 0o002;

/// The files to read, and how they were found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// In the order in which they are read; none if there is none.
    pub(crate) files: Vec<PathBuf>,
    source: Source,
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Flag,
    Variable,
    Search,
    /// Nothing was found in these places.
    Nowhere(Vec<PathBuf>),
}

/// The files that the flag names, or else those that are found.
pub(crate) fn find(named: Vec<PathBuf>) -> Result<Found> {
    find_by(named, |name| std::env::var_os(name))
}

fn find_by(named: Vec<PathBuf>, variable: impl Fn(&str) -> Option<OsString>) -> Result<Found> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if !named.is_empty() {
        return Ok(Found { files: named, source: Source::Flag });
    }
    if let Some(paths) = variable(VARIABLE) {
        let files = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
        return Ok(Found { files: files.collect(), source: Source::Variable });
    }
    let here = PathBuf::from(HERE);
    if exists(&here)? {
        check_owner(&here)?;
        return Ok(Found { files: vec![here], source: Source::Search });
    }
    // What is no whole path is not meant for us, says the specification of the variable.
    let own = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = own.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
    let places: Vec<PathBuf> =
        own.into_iter().chain([PathBuf::from("/etc")]).map(|folder| folder.join(BELOW)).collect();
    for place in &places {
        if exists(place)? {
            return Ok(Found { files: vec![place.clone()], source: Source::Search });
        }
    }
    let looked_at = [here].into_iter().chain(places).collect();
    Ok(Found { files: Vec::new(), source: Source::Nowhere(looked_at) })
}

/// Whether there is a file. One that cannot be looked at is no missing one: whoever wrote it wants
/// it to be used.
fn exists(path: &Path) -> Result<bool> {
    match path.metadata() {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

/// Refuses a file that somebody else may have put there.
fn check_owner(path: &Path) -> Result<()> {
    let told = path.display();
    let file = path.metadata().with_context(|| format!("cannot look at {told}"))?;
    let way_out = format!("pass --config {told} if you want to use it");
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&file.uid()) {
        return Err(misuse(format_args!(
            "{told} belongs to another user (id {}): {way_out}",
            file.uid()
        )));
    }
    if file.mode() & WRITABLE_BY_ALL != 0 {
        return Err(misuse(format_args!("everybody may write {told}: {way_out}")));
    }
    Ok(())
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |paths: &[PathBuf]| {
            let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            paths.join(", ")
        };
        let files = joined(&self.files);
        match &self.source {
            Source::Flag => f.write_str(&files),
            Source::Variable => write!(f, "{files} (from {VARIABLE})"),
            Source::Search => write!(f, "{files} (found; --config names another)"),
            Source::Nowhere(places) => write!(f, "none found (no {})", joined(places)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_beats_the_variable_and_the_variable_beats_what_is_found() {
        let variables = |name: &str| (name == VARIABLE).then(|| "/a.toml::/b.yaml".into());
        let found = find_by(vec!["c.toml".into()], variables).unwrap();
        assert_eq!(found.to_string(), "c.toml");
        let found = find_by(Vec::new(), variables).unwrap();
        assert_eq!(found.files, [Path::new("/a.toml"), Path::new("/b.yaml")]);
        assert_eq!(found.to_string(), "/a.toml, /b.yaml (from TOLLWAY_CONFIG)");
    }

    #[test]
    fn an_own_folder_of_settings_counts_if_it_is_a_whole_path() {
        let places = |xdg: &'static str| {
            let variables = |name: &str| match name {
                "XDG_CONFIG_HOME" => Some(xdg.into()),
                "HOME" => Some("/nowhere".into()),
                _ => None,
            };
            let Source::Nowhere(places) = find_by(Vec::new(), variables).unwrap().source else {
                panic!("this machine has a configuration");
            };
            places[1].display().to_string()
        };
        assert_eq!(places("/absent/settings"), "/absent/settings/tollway/tollway.toml");
        for wrong in ["", "relative"] {
            assert_eq!(places(wrong), "/nowhere/.config/tollway/tollway.toml");
        }
    }
}
