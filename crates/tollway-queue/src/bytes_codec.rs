//! Bytes as backends store them: little-endian numbers, texts and lists with their lengths first.

#![cfg_attr(
    not(all(feature = "redb", feature = "redis")),
    allow(dead_code, reason = "each backend uses a part")
)]

use std::time::Duration;

use tollway_core::Timestamp;

/// Bytes that are being written.
#[derive(Debug, Default)]
pub(crate) struct ByteWriter(pub(crate) Vec<u8>);

impl ByteWriter {
    /// The same room for another row.
    pub(crate) fn empty(&mut self) -> &mut Self {
        self.0.clear();
        self
    }

    /// A number that is mostly small: seven bits to a byte, the lowest first.
    pub(crate) fn short(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn f64(&mut self, value: f64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A text of at most 65,535 bytes.
    pub(crate) fn short_text(&mut self, value: &str) -> &mut Self {
        self.0.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self
    }

    pub(crate) fn time(&mut self, value: Timestamp) -> &mut Self {
        self.u64(value.as_nanos())
    }

    pub(crate) fn duration(&mut self, value: Duration) -> &mut Self {
        self.u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(u32::try_from(value.len()).expect("rows are far below 4 GiB"));
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// A value that may be absent.
    pub(crate) fn option<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T),
    ) -> &mut Self {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
        self
    }

    pub(crate) fn list<T>(
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
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn f64(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes)
    }

    pub(crate) fn short(&mut self) -> Option<u64> {
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

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        self.u64().map(Timestamp::from_nanos)
    }

    pub(crate) fn duration(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_nanos)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub(crate) fn short_text(&mut self) -> Option<&'a str> {
        let len = self.array().map(u16::from_le_bytes)?;
        std::str::from_utf8(self.take(usize::from(len))?).ok()
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    pub(crate) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let len = self.u32()?;
        // No capacity in advance: a damaged length must not ask for gigabytes.
        (0..len).map(|_| read(self)).collect()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}
