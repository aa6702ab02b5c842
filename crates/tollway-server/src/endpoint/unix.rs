//! A Unix socket: its path, and who may connect.
//!
//! ```text
//!   unix:/run/tollway.sock?mode=0660&group=www-data
//!        path                `-- whoever may write to the socket may connect
//! ```
//!
//! Without a mode only the process's own user may connect, and its group if one is given. The umask
//! is not asked: where it is 0, every program on the machine would be let in.

use std::fmt;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where groups are looked up by name.
const GROUPS: &str = "/etc/group";
/// Reading, writing, executing; no bits that mean something else on other files.
const MODE_MAX: u32 = 0o777;

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its mode; `None` for the owner alone, and the group if there is one.
    pub mode: Option<u32>,
    /// Its group, by name or number; `None` for the process's own.
    pub group: Option<String>,
}

impl UnixSocket {
    /// A socket for the process's own user.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), mode: None, group: None }
    }

    /// Whether its folder and its group are there; what is wrong if they are not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(format!("the folder {} does not exist", folder.display()));
        }
        match self.group.as_deref().map(|group| number_of(group, Path::new(GROUPS))) {
            Some(Err(error)) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Whether nobody listens there now.
    pub(crate) fn try_out(&self) -> io::Result<()> {
        match UnixStream::connect(&self.path) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(_) => Ok(()),
        }
    }

    /// Gives the bound socket its group and mode.
    pub(crate) fn protect(&self) -> io::Result<()> {
        if let Some(group) = &self.group {
            chown(&self.path, None, Some(number_of(group, Path::new(GROUPS))?))?;
        }
        // After the group: a mode that lets a group in must not let in another one first.
        let usual = if self.group.is_some() { 0o660 } else { 0o600 };
        let mode = self.mode.unwrap_or(usual);
        std::fs::set_permissions(&self.path, PermissionsExt::from_mode(mode))
    }
}

/// The number of a group. Read from the file, as the system's own lookup cannot be called safely; a
/// group that only a directory service knows is given by its number.
fn number_of(group: &str, groups: &Path) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string(groups)?;
    let number = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(group);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    });
    let unknown =
        || format!("there is no group {group:?} in {}; give its number", groups.display());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, unknown()))
}

impl FromStr for UnixSocket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, options) = text.split_once('?').unwrap_or((text, ""));
        if path.is_empty() {
            return Err("a Unix socket needs a path".to_owned());
        }
        let mut socket = Self::at(path);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("mode", digits)) => socket.mode = Some(mode(digits)?),
                Some(("group", group)) if !group.is_empty() => socket.group = Some(group.into()),
                _ => {
                    let right = "expected mode=0660 or group=www-data";
                    return Err(format!("{option:?} says nothing about a Unix socket; {right}"));
                }
            }
        }
        Ok(socket)
    }
}

fn mode(digits: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= MODE_MAX);
    let wrong = || format!("mode={digits:?} is no mode; expected octal digits as in 0660");
    mode.filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit())).ok_or_else(wrong)
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_group_stand_after_the_path() {
        let read = |text: &str| text.parse::<UnixSocket>();
        assert_eq!(read("/run/t.sock"), Ok(UnixSocket::at("/run/t.sock")));
        let socket = read("/run/t.sock?mode=0660&group=www-data").unwrap();
        assert_eq!((socket.mode, socket.group.as_deref()), (Some(0o660), Some("www-data")));
        assert_eq!(socket.path, Path::new("/run/t.sock"));
        for wrong in ["", "?mode=0660", "/s?mode=9", "/s?mode=+66", "/s?mode=4755", "/s?group="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let unknown = read("/s?owner=root").unwrap_err();
        assert!(unknown.contains("expected mode=0660 or group=www-data"), "{unknown}");
    }

    #[test]
    fn groups_are_found_by_name_and_by_number() {
        let groups = Path::new(GROUPS);
        assert_eq!(number_of("4711", groups).unwrap(), 4711);
        assert_eq!(number_of("root", groups).unwrap(), 0);
        let unknown = number_of("no such group", groups).unwrap_err().to_string();
        assert!(unknown.contains("no group \"no such group\""), "{unknown}");
    }
}
