//! Rows as bytes: little-endian numbers, texts and lists with their lengths before them.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::error::{Error, ErrorKind};

/// A row that is being written.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    /// The same room for another row.
    pub(super) fn empty(&mut self) -> &mut Self {
        self.0.clear();
        self
    }

    /// A number that is mostly small: seven bits to a byte, the lowest first.
    pub(super) fn short(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn time(&mut self, value: Timestamp) -> &mut Self {
        self.u64(value.as_nanos())
    }

    pub(super) fn duration(&mut self, value: Duration) -> &mut Self {
        self.u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(u32::try_from(value.len()).expect("rows are far below 4 GiB"));
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// A value that may be absent.
    pub(super) fn option<T>(
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

    pub(super) fn list<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.u32(u32::try_from(values.len()).expect("lists are far below 2^32"));
        values.for_each(|value| write(self, value));
        self
    }
}

/// A row that is being read.
#[derive(Debug)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn short(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged())
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, Error> {
        Ok(Timestamp::from_nanos(self.u64()?))
    }

    pub(super) fn duration(&mut self) -> Result<Duration, Error> {
        Ok(Duration::from_nanos(self.u64()?))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| damaged())
    }

    pub(super) fn flag(&mut self) -> Result<bool, Error> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(damaged()),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let len = self.u32()?;
        // No capacity in advance: a damaged length must not ask for gigabytes.
        (0..len).map(|_| read(self)).collect()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// That a row does not read as it was written.
pub(super) fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "a row of the queue file is damaged")
}
