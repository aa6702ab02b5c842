//! Budgets as bytes, so that processes can keep them in a store together.
//!
//! ```text
//!   number   seven bits a byte, the lowest first      option   0, or 1 and the value
//!   text     its length, its bytes                    list     its length, its values
//!   route    its place among the routes before it, or the next free place and the route
//! ```
//!
//! Each type says beside its own definition what of it is kept: [`encoded!`] lists its fields, so a
//! field that is forgotten does not compile. What was written by another version of this program is
//! told apart before it is read here; bytes that make no sense are answered by none, never by a
//! panic.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

use crate::profile::{Costs, DIMENSIONS_MAX, Route};

/// More values than this are in no list that we write.
const LIST_MAX: usize = 1 << 20;

/// What is written.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    routes: Vec<Route>,
}

/// What is still to be read.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    routes: Vec<Route>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, routes: Vec::new() }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }
}

/// What can be written as bytes and read again.
pub(crate) trait Encoded: Sized {
    fn write(&self, out: &mut Writer);
    /// None if the bytes make no sense.
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

/// Writes and reads a type by its fields in order; those after `made` are made anew.
macro_rules! encoded {
    ($name:ty { $($field:ident),* $(,)? } $(made { $($made:ident),* })?) => {
        #[cfg(feature = "redis")]
        impl crate::budget::encoding::Encoded for $name {
            fn write(&self, out: &mut crate::budget::encoding::Writer) {
                $(crate::budget::encoding::Encoded::write(&self.$field, out);)*
            }

            fn read(from: &mut crate::budget::encoding::Reader<'_>) -> Option<Self> {
                Some(Self {
                    $($field: crate::budget::encoding::Encoded::read(from)?,)*
                    $($($made: Default::default(),)*)?
                })
            }
        }
    };
}

/// Writes and reads one of several names.
macro_rules! encoded_names {
    ($name:ty { $($value:ident = $number:literal),* $(,)? }) => {
        #[cfg(feature = "redis")]
        impl crate::budget::encoding::Encoded for $name {
            fn write(&self, out: &mut crate::budget::encoding::Writer) {
                out.bytes.push(match self { $(Self::$value => $number,)* });
            }

            fn read(from: &mut crate::budget::encoding::Reader<'_>) -> Option<Self> {
                match from.take(1)? {
                    $([$number] => Some(Self::$value),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {encoded, encoded_names};

impl Encoded for u64 {
    fn write(&self, out: &mut Writer) {
        let mut left = *self;
        while left >= 0x80 {
            out.bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.bytes.push(left as u8);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *from.take(1)?.first()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

macro_rules! encoded_numbers {
    ($($narrow:ty),*) => {$(
        impl Encoded for $narrow {
            fn write(&self, out: &mut Writer) {
                (*self as u64).write(out);
            }

            fn read(from: &mut Reader<'_>) -> Option<Self> {
                <$narrow>::try_from(u64::read(from)?).ok()
            }
        }
    )*};
}

encoded_numbers!(u8, u32, usize);

impl Encoded for i64 {
    fn write(&self, out: &mut Writer) {
        ((*self << 1) ^ (*self >> 63)).cast_unsigned().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let folded = u64::read(from)?;
        Some((folded >> 1).cast_signed() ^ -((folded & 1).cast_signed()))
    }
}

impl Encoded for i128 {
    fn write(&self, out: &mut Writer) {
        out.bytes.extend(self.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.take(16)?.try_into().ok().map(Self::from_le_bytes)
    }
}

impl Encoded for f64 {
    fn write(&self, out: &mut Writer) {
        out.bytes.extend(self.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.take(8)?.try_into().ok().map(Self::from_le_bytes).filter(|number| number.is_finite())
    }
}

impl Encoded for bool {
    fn write(&self, out: &mut Writer) {
        out.bytes.push(u8::from(*self));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.take(1).map(|byte| byte != [0])
    }
}

impl Encoded for Duration {
    fn write(&self, out: &mut Writer) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        u64::read(from).map(Self::from_nanos)
    }
}

impl Encoded for Timestamp {
    fn write(&self, out: &mut Writer) {
        self.as_nanos().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        u64::read(from).map(Self::from_nanos)
    }
}

impl Encoded for Box<str> {
    fn write(&self, out: &mut Writer) {
        self.len().write(out);
        out.bytes.extend(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let length = usize::read(from)?;
        std::str::from_utf8(from.take(length)?).ok().map(Self::from)
    }
}

impl<T: Encoded> Encoded for Option<T> {
    fn write(&self, out: &mut Writer) {
        self.is_some().write(out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        if bool::read(from)? { T::read(from).map(Some) } else { Some(None) }
    }
}

impl<T: Encoded> Encoded for Box<T> {
    fn write(&self, out: &mut Writer) {
        T::write(self, out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        T::read(from).map(Self::new)
    }
}

impl<A: Encoded, B: Encoded> Encoded for (A, B) {
    fn write(&self, out: &mut Writer) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?))
    }
}

/// Writes a list whose length is known.
pub(crate) fn write_list<'a, T: Encoded + 'a>(
    list: impl ExactSizeIterator<Item = &'a T>,
    out: &mut Writer,
) {
    list.len().write(out);
    list.for_each(|value| value.write(out));
}

macro_rules! encoded_lists {
    ($($list:ident),*) => {$(
        impl<T: Encoded> Encoded for $list<T> {
            fn write(&self, out: &mut Writer) {
                write_list(self.iter(), out);
            }

            fn read(from: &mut Reader<'_>) -> Option<Self> {
                let length = usize::read(from)?;
                if length > LIST_MAX {
                    return None;
                }
                (0..length).map(|_| T::read(from)).collect()
            }
        }
    )*};
}

encoded_lists!(Vec, VecDeque);

/// Most of them are zero.
impl Encoded for Costs {
    fn write(&self, out: &mut Writer) {
        let bits = self.iter().rev().fold(0_u8, |bits, cost| bits << 1 | u8::from(*cost > 0));
        out.bytes.push(bits);
        self.iter().filter(|cost| **cost > 0).for_each(|cost| cost.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let bits = *from.take(1)?.first()?;
        let mut costs = [0; DIMENSIONS_MAX];
        for (index, cost) in costs.iter_mut().enumerate() {
            if bits >> index & 1 == 1 {
                *cost = u32::read(from)?;
            }
        }
        Some(costs)
    }
}

#[cfg(feature = "redis")]
impl Encoded for Route {
    fn write(&self, out: &mut Writer) {
        let place = out.routes.iter().position(|known| known == self);
        place.unwrap_or(out.routes.len()).write(out);
        if place.is_none() {
            self.fields().write(out);
            out.routes.push(self.clone());
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let place = usize::read(from)?;
        if place == from.routes.len() {
            let route = Encoded::read(from).map(Self::of_fields)?;
            from.routes.push(route);
        }
        from.routes.get(place).cloned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again<T: Encoded>(value: &T) -> Option<T> {
        let mut out = Writer::default();
        value.write(&mut out);
        let mut from = Reader::new(&out.bytes);
        T::read(&mut from).filter(|_| from.bytes.is_empty())
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            numbers in prop::collection::vec(any::<u64>(), 0..9),
            signed in any::<i64>(),
            costs in any::<Costs>(),
            text in "\\PC{0,20}",
        ) {
            let routes = vec![Route::new("GET", &text, "1"), Route::new("GET", &text, "1")];
            prop_assert_eq!(again(&numbers), Some(numbers));
            prop_assert_eq!(again(&signed), Some(signed));
            prop_assert_eq!(again(&costs), Some(costs));
            let names = |routes: Vec<Route>| -> Vec<String> {
                routes.iter().map(|route| route.name().to_owned()).collect()
            };
            prop_assert_eq!(again(&routes).map(names), Some(names(routes)));
        }

        #[test]
        fn bytes_that_make_no_sense_are_answered_by_none(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = Vec::<(u64, Box<str>)>::read(&mut Reader::new(&bytes));
            let _ = Vec::<Route>::read(&mut Reader::new(&bytes));
            let _ = Costs::read(&mut Reader::new(&bytes));
        }
    }
}
