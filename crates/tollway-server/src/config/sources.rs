//! Where a configuration comes from: files, folders of files, and what no file says.
//!
//! A folder stands for the files in it that are TOML or YAML, in the order of their names; folders
//! in it and names that begin with a dot are left out. So a mounted ConfigMap, whose `..data` holds
//! the files a second time, is read once.

use std::path::{Path, PathBuf};

use super::error::{ConfigError, Finding, Mistakes};

/// A folder with more files is refused: it is the wrong one.
const FILES_MAX: usize = 4_096;

/// A part of a configuration that stands in no file.
#[derive(Clone, Default, PartialEq)]
pub struct Given {
    /// What a mistake in it is said to be in.
    pub name: String,
    /// What a file would say.
    pub value: serde_json::Value,
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL of a store may hold a password.
        f.debug_struct("Given").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The files of a list, with those that its folders hold in place of them. A folder that cannot be
/// read, or holds too many, stays: whoever reads it learns why. One whose path ends with a slash
/// may be missing, and come later.
pub fn files_now(files: &[PathBuf]) -> Vec<PathBuf> {
    let of = |path: &PathBuf| match path.is_dir() {
        true => listed(path).unwrap_or_else(|_| vec![path.clone()]),
        false => vec![path.clone()],
    };
    files.iter().flat_map(of).collect()
}

/// Every file's name and text, or what is wrong with each that cannot be read.
pub(super) fn read_all(files: &[PathBuf]) -> Result<Vec<(String, String)>, Mistakes> {
    let finding = Finding::default();
    let mut texts = Vec::new();
    for path in files {
        let all = match path.is_dir() {
            true => finding.tell(listed(path)).unwrap_or_default(),
            false if may_be_missing(path) && !path.exists() => Vec::new(),
            false => vec![path.clone()],
        };
        if all.is_empty() {
            // An empty folder says nothing, and is not the absence of a configuration.
            texts.push((path.display().to_string(), String::new()));
        }
        let read = |file: &PathBuf| Some((file.display().to_string(), finding.tell(read(file))?));
        texts.extend(all.iter().filter_map(read));
    }
    finding.finish(Some(texts))
}

fn may_be_missing(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |error: std::io::Error| wrong(folder, format!("cannot be read: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if is_configuration(&path) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            let problem = format!("holds more than {FILES_MAX} files of configuration");
            return Err(wrong(folder, problem));
        }
    }
    files.sort();
    Ok(files)
}

fn is_configuration(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_known = path
        .extension()
        .is_some_and(|end| ["toml", "yaml", "yml"].map(Some).contains(&end.to_str()));
    // Looked at through links: a ConfigMap's files are links.
    !is_hidden && is_known && path.is_file()
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|error| wrong(file, format!("cannot be read: {error}")))
}

fn wrong(path: &Path, problem: String) -> ConfigError {
    let source = path.display().to_string();
    ConfigError { source, line: 0, field: String::new(), problem }
}
