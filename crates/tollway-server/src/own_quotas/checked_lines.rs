//! A file of lines that are on the disk before anybody hears of them, each with a checksum.
//!
//! ```text
//!   <16 hexadecimal digits of the SHA-256 of what follows> <text>\n
//! ```
//!
//! **What a crash leaves** is every line that was acknowledged, and perhaps the beginning of one
//! that was not: it is cut off when the file is opened. A bad line with more behind it is no crash
//! but damage: the lines before it count, and the file is set aside whole, for whoever can mend it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use crate::top::hex;

const CHECKSUM_LEN: usize = 16;
/// A file that is longer was not written by this.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The file, open to be written and locked for this process.
#[derive(Debug)]
pub(super) struct CheckedLines {
    path: PathBuf,
    file: File,
    /// The bytes that are known to be on the disk.
    length: u64,
    /// Whether more than that may be in the file.
    is_dirty: bool,
}

/// What a file held when it was opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub file: CheckedLines,
    /// The texts of its good lines, in order.
    pub lines: Vec<Vec<u8>>,
    /// Bytes of a last line that was never finished.
    pub torn: usize,
    /// Where the file was set aside, if it was damaged.
    pub aside: Option<PathBuf>,
}

/// The good lines at the beginning of `bytes`, how long they are, and whether the rest is damage
/// rather than one line that was never finished.
fn good_lines(bytes: &[u8]) -> (Vec<&[u8]>, usize, bool) {
    let (mut lines, mut at) = (Vec::new(), 0);
    loop {
        let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') else {
            return (lines, at, false);
        };
        let line = &bytes[at..at + end];
        let Some(text) = checked(line) else {
            return (lines, at, at + end + 1 < bytes.len());
        };
        lines.push(text);
        at += end + 1;
    }
}

fn checked(line: &[u8]) -> Option<&[u8]> {
    let (sum, text) = line.split_at_checked(CHECKSUM_LEN)?;
    let text = text.strip_prefix(b" ")?;
    (checksum(text).as_bytes() == sum).then_some(text)
}

fn checksum(text: &[u8]) -> String {
    hex(&digest(&SHA256, text).as_ref()[..CHECKSUM_LEN / 2])
}

fn push_line(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(checksum(text).as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(text);
    bytes.push(b'\n');
}

impl CheckedLines {
    /// Opens the file at `path`, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// If it cannot be read, written or locked.
    pub(super) fn open(path: &Path) -> io::Result<Opened> {
        let mut file = locked(path)?;
        if file.metadata()?.len() > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 256 MiB"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (lines, length, is_damaged) = good_lines(&bytes);
        let lines = lines.into_iter().map(<[u8]>::to_vec).collect();
        let aside = if is_damaged { Some(set_aside(path, &bytes)?) } else { None };
        let torn = if is_damaged { 0 } else { bytes.len() - length };
        let mut file = Self { path: path.to_owned(), file, length: length as u64, is_dirty: true };
        file.cut()?;
        file.file.sync_all()?;
        sync_folder(path)?;
        Ok(Opened { file, lines, torn, aside })
    }

    /// How long it is.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    /// Adds a line. It is on the disk when this returns.
    ///
    /// # Errors
    ///
    /// If it cannot be written; then it is not in the file, and the next one may be tried.
    pub(super) fn append(&mut self, text: &[u8]) -> io::Result<()> {
        self.cut()?;
        let mut bytes = Vec::with_capacity(text.len() + CHECKSUM_LEN + 2);
        push_line(&mut bytes, text);
        self.is_dirty = true;
        self.file.write_all(&bytes).and_then(|()| self.file.sync_data()).inspect_err(|_| {
            // Tried again before the next line, if it fails.
            let _ = self.cut();
        })?;
        self.is_dirty = false;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Writes these lines in the place of all that is there. After a crash there is either the old
    /// file or the new one.
    ///
    /// # Errors
    ///
    /// If that fails; then the old file stays.
    pub(super) fn rewrite(&mut self, texts: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
        let mut bytes = Vec::new();
        texts.for_each(|text| push_line(&mut bytes, &text));
        let new = beside(&self.path, "new");
        let _ = std::fs::remove_file(&new);
        let mut file = locked(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        (self.file, self.length, self.is_dirty) = (file, bytes.len() as u64, false);
        sync_folder(&self.path)
    }

    /// Cuts off what may stand behind the last line that counts.
    fn cut(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

fn locked(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another process has it open"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Keeps what a damaged file held under a name that is free.
fn set_aside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let aside = beside(path, &format!("damaged-{number}"));
        match File::create_new(&aside) {
            Ok(mut file) => {
                file.write_all(bytes)?;
                file.sync_all()?;
                return Ok(aside);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = any::<u8>().prop_map(|byte| if byte == b'\n' { b' ' } else { byte });
        prop::collection::vec(prop::collection::vec(byte, 0..40), 0..12)
    }

    fn file_of(texts: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for text in texts {
            push_line(&mut bytes, text);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    proptest! {
        #[test]
        fn of_a_file_that_is_cut_off_anywhere_the_whole_lines_count(
            texts in texts(), at in any::<prop::sample::Index>()
        ) {
            let (bytes, ends) = file_of(&texts);
            let cut = at.index(bytes.len() + 1);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let (lines, length, is_damaged) = good_lines(&bytes[..cut]);
            prop_assert_eq!(lines, &texts[..whole]);
            prop_assert_eq!((length, is_damaged), (ends[whole], false));
        }

        #[test]
        fn of_a_file_with_other_bytes_in_it_the_lines_before_them_count(
            texts in texts(), at in any::<prop::sample::Index>(), other in 1..=255_u8
        ) {
            prop_assume!(!texts.is_empty());
            let (mut bytes, ends) = file_of(&texts);
            let flipped = at.index(bytes.len());
            bytes[flipped] ^= other;
            let whole = ends.iter().filter(|end| **end <= flipped).count() - 1;
            let (lines, length, _) = good_lines(&bytes);
            prop_assert_eq!(lines, &texts[..whole]);
            prop_assert_eq!(length, ends[whole]);
        }

        #[test]
        fn bytes_of_any_kind_are_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let (lines, length, _) = good_lines(&bytes);
            prop_assert!(lines.is_empty() && length == 0);
        }
    }

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let name = format!("tollway-checked-lines-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn opened(path: &Path) -> (CheckedLines, Vec<Vec<u8>>) {
        let opened = CheckedLines::open(path).unwrap();
        (opened.file, opened.lines)
    }

    #[test]
    fn a_torn_tail_is_cut_off_and_the_next_line_stands_where_it_was() {
        let place = TestFolder::new("torn");
        let path = place.0.join("quotas");
        let (mut file, _) = opened(&path);
        file.append(b"one").unwrap();
        file.append(b"two").unwrap();
        drop(file);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 2]).unwrap();
        let again = CheckedLines::open(&path).unwrap();
        assert_eq!((again.lines.len(), again.torn > 0, &again.aside), (1, true, &None));
        let mut file = again.file;
        file.append(b"three").unwrap();
        drop(file);
        assert_eq!(opened(&path).1, [b"one".to_vec(), b"three".to_vec()]);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_its_first_lines_count() {
        let place = TestFolder::new("damaged");
        let path = place.0.join("quotas");
        let (mut file, _) = opened(&path);
        for text in [b"one", b"two", b"six"] {
            file.append(text).unwrap();
        }
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[25] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let again = CheckedLines::open(&path).unwrap();
        assert_eq!(again.lines, [b"one".to_vec()]);
        assert_eq!(std::fs::read(again.aside.unwrap()).unwrap(), bytes);
    }

    #[test]
    fn a_file_is_written_anew_and_goes_on_from_there_and_one_process_has_it() {
        let place = TestFolder::new("anew");
        let path = place.0.join("quotas");
        let (mut file, _) = opened(&path);
        (0..100).for_each(|_| file.append(b"often").unwrap());
        let before = file.length();
        file.rewrite([b"once".to_vec()].into_iter()).unwrap();
        assert!(file.length() < before);
        file.append(b"more").unwrap();
        assert!(CheckedLines::open(&path).is_err(), "it is open already");
        drop(file);
        assert_eq!(opened(&path).1, [b"once".to_vec(), b"more".to_vec()]);
    }
}
