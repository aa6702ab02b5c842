//! Bytes that scripts read and write: little endian, packed, no padding.

/// Above every limb: values hold them in seven bytes. At the end of time they are beyond 2^53, and
/// what a script says of such a moment is rounded, but still an answer.
const LIMB_MAX: f64 = (1u64 << 56) as f64;

/// Reads what a script packed.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// An unsigned integer of `len` bytes, at most 8.
    pub(crate) fn number(&mut self, len: usize) -> Option<u64> {
        let bytes = self.take(len)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// A whole number that is not negative, as [`put_double`] writes it, or its opposite, and
    /// whether it is that.
    pub(crate) fn double(&mut self) -> Option<(u64, bool)> {
        let double = self.take(8)?.try_into().ok().map(f64::from_le_bytes)?;
        let number = double.abs();
        (number < LIMB_MAX && number.fract() == 0.0)
            .then_some((number as u64, double.is_sign_negative()))
    }

    /// The name of a reservation.
    pub(crate) fn id(&mut self) -> Option<u128> {
        self.take(16)?.try_into().ok().map(u128::from_be_bytes)
    }

    /// What is left to be read.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
}

/// Appends a number as a double, exact below 2^53.
pub(crate) fn put_double(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&(number as f64).to_le_bytes());
}

/// Appends the lowest `len` bytes of a number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u64, len: usize) {
    out.extend_from_slice(&number.to_le_bytes()[..len]);
}
