//! Bytes as backends store them: little-endian numbers, texts and lists with their lengths first.

use std::time::Duration;

use tollway_core::Timestamp;

/// Bytes that are being written.
#[derive(Debug, Default)]
pub struct ByteWriter(pub Vec<u8>);

impl ByteWriter {
    /// The same room for another row.
    pub fn empty(&mut self) -> &mut Self {
        self.0.clear();
        self
    }

    /// A number that is mostly small: seven bits to a byte, the lowest first.
    pub fn short(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// A number of four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A number of eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A floating-point number.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A text of at most 65,535 bytes.
    pub fn short_text(&mut self, value: &str) -> &mut Self {
        self.0.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self
    }

    /// A moment, in nanoseconds.
    pub fn time(&mut self, value: Timestamp) -> &mut Self {
        self.u64(value.as_nanos())
    }

    /// A time span, in nanoseconds.
    pub fn duration(&mut self, value: Duration) -> &mut Self {
        self.u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Bytes with their length first.
    ///
    /// # Panics
    ///
    /// If there are 4 GiB of them.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(u32::try_from(value.len()).expect("rows are far below 4 GiB"));
        self.0.extend_from_slice(value);
        self
    }

    /// A text with its length first.
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// A value that may be absent.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
        self
    }

    /// Values with their number first.
    ///
    /// # Panics
    ///
    /// If there are 2^32 of them.
    pub fn list<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.u32(u32::try_from(values.len()).expect("lists are far below 2^32"));
        values.for_each(|value| write(self, value));
        self
    }
}

/// Bytes that are being read, from the front; `None` where they do not read as they were written.
#[derive(Debug)]
pub struct ByteReader<'a>(pub &'a [u8]);

impl<'a> ByteReader<'a> {
    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A floating-point number.
    pub fn f64(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// What [`ByteWriter::short`] wrote.
    pub fn short(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A moment.
    pub fn time(&mut self) -> Option<Timestamp> {
        self.u64().map(Timestamp::from_nanos)
    }

    /// A time span.
    pub fn duration(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_nanos)
    }

    /// Bytes that have their length first.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// A text that has its length first.
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// What [`ByteWriter::short_text`] wrote.
    pub fn short_text(&mut self) -> Option<&'a str> {
        let len = self.array().map(u16::from_le_bytes)?;
        std::str::from_utf8(self.take(usize::from(len))?).ok()
    }

    /// Yes or no.
    pub fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// A value that may be absent.
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    /// Values that have their number first.
    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.u32()?;
        // No capacity in advance: a damaged length must not ask for gigabytes.
        (0..len).map(|_| read(self)).collect()
    }

    /// So many bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}
