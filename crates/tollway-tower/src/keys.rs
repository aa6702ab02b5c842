//! Who is limited: keys drawn from a request, by address, header, route, or a function.
//!
//! A key source writes bytes into a [`KeyBuf`], which keeps short keys on the stack. Only
//! [`ClientAddress`] reads forwarding headers, and only from peers it was told to trust: a header
//! that a stranger can write must not choose the key that stranger is limited by. Deliberately
//! absent: `X-Real-IP` and its kin, which cannot be checked hop by hop.

mod address;

use std::fmt;

use http::HeaderName;

pub use address::{ClientAddress, PeerAddr};
pub use tollway_core::fields::ForwardedBy;
pub use tollway_core::{Cidr, CidrError};

use crate::{Head, LayerError};

/// Longer keys count as missing: nobody needs them, and a store must keep every one.
pub const KEY_BYTES_MAX: usize = 4096;

/// Draws a key from the head of a request. If it panics the request is refused with status 500.
pub trait KeySource: Send + Sync + 'static {
    /// Appends the key to `key`.
    ///
    /// # Errors
    ///
    /// If the request has none. What was appended is then ignored.
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey>;

    /// Limits by this key and `other` together.
    fn and<K: KeySource>(self, other: K) -> And<Self, K>
    where
        Self: Sized,
    {
        And(self, other)
    }

    /// Limits by this key, or by `other` where a request has none of the first kind.
    ///
    /// The two never meet: an API key that reads like somebody's address is another key.
    fn or<K: KeySource>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or(self, other)
    }
}

/// Gives a key `and` and `or` without an import of [`KeySource`].
macro_rules! combined {
    ($($name:ty $(, $generic:ident)*;)*) => {$(
        impl<$($generic),*> $name
        where
            Self: KeySource,
        {
            /// Limits by this key and `other` together: [`KeySource::and`].
            pub fn and<Other: KeySource>(self, other: Other) -> And<Self, Other> {
                KeySource::and(self, other)
            }

            /// Limits by this key, or by `other` where a request has none of the first kind:
            /// [`KeySource::or`].
            pub fn or<Other: KeySource>(self, other: Other) -> Or<Self, Other> {
                KeySource::or(self, other)
            }
        }
    )*};
}

combined! {
    ClientAddress;
    Everyone;
    Header;
    FromFn<F>, F;
    And<A, B>, A, B;
    Or<A, B>, A, B;
}

#[cfg(feature = "axum")]
combined! { Route; }

/// Why a request has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// What the source looks for is absent, empty or too long: [`MissingKey`](crate::MissingKey)
    /// decides.
    Missing,
    /// The source panicked: the request is refused with status 500, never let through.
    Panicked,
}

/// Bytes of keys under construction; up to 64 of them need no allocation.
#[derive(Clone)]
pub struct KeyBuf {
    inline: [u8; Self::INLINE],
    len: usize,
    /// Holds all bytes once they no longer fit inline.
    spilled: Vec<u8>,
}

impl KeyBuf {
    const INLINE: usize = 64;

    #[inline]
    pub(crate) const fn new() -> Self {
        Self { inline: [0; Self::INLINE], len: 0, spilled: Vec::new() }
    }

    /// Appends bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if !self.spilled.is_empty() {
            self.spilled.extend_from_slice(bytes);
        } else if let Some(room) = self.inline.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
        } else {
            self.spilled.reserve(end);
            self.spilled.extend_from_slice(&self.inline[..self.len]);
            self.spilled.extend_from_slice(bytes);
        }
        self.len = end;
    }

    /// Appends the lowest `len` bytes of `text`, in one move where 16 of them fit.
    #[inline]
    pub(crate) fn push_short(&mut self, text: u128, len: usize) {
        match self.inline.get_mut(self.len..self.len + 16) {
            Some(room) if self.spilled.is_empty() => {
                room.copy_from_slice(&text.to_le_bytes());
                self.len += len;
            }
            _ => self.push_late(text, len),
        }
    }

    /// Apart, because it needs the bytes in memory.
    #[cold]
    fn push_late(&mut self, text: u128, len: usize) {
        self.push(&text.to_le_bytes()[..len]);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.spilled.truncate(len);
        self.len = self.len.min(len);
        if len <= Self::INLINE && !self.spilled.is_empty() {
            self.inline[..len].copy_from_slice(&self.spilled);
            self.spilled.clear();
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.inline[..self.len] } else { &self.spilled }
    }
}

impl fmt::Write for KeyBuf {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "KeyBuf(\"{}\")", self.bytes().escape_ascii())
    }
}

/// One key for every request: a global limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Everyone;

impl KeySource for Everyone {
    fn write_key(&self, _head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        key.push(b"*");
        Ok(())
    }
}

/// The value of a header field, byte for byte; of several lines the first.
///
/// The client chooses it. That is right for credentials that something behind the limit verifies,
/// and wrong for anything a client may make up at will: then combine it with a [`ClientAddress`].
#[derive(Debug, Clone)]
pub struct Header(HeaderName);

impl Header {
    /// The field of that name: text, which is checked here, or a [`HeaderName`].
    ///
    /// ```
    /// use tollway_tower::keys::{ClientAddress, Header};
    ///
    /// let key = Header::new("x-api-key")?.or(ClientAddress::peer());
    /// # let _ = key;
    /// # Ok::<(), tollway_tower::LayerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If no field can have this name: it is empty, or has a space or a colon in it.
    pub fn new<N: AsRef<str> + TryInto<HeaderName>>(name: N) -> Result<Self, LayerError> {
        let invalid = LayerError::invalid_header(name.as_ref());
        name.try_into().map(Self).map_err(|_| invalid)
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeySource for Header {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        let value = head.headers.get(&self.0).map(|value| value.as_bytes());
        key.push(value.filter(|value| !value.is_empty()).ok_or(NoKey::Missing)?);
        Ok(())
    }
}

/// The method and the template of the matched route: `GET /users/{id}`.
///
/// The template and not the path, because a path lets a client choose among endless keys.
#[cfg(feature = "axum")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Route;

#[cfg(feature = "axum")]
impl KeySource for Route {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        let matched = head.extensions.get::<axum::extract::MatchedPath>().ok_or(NoKey::Missing)?;
        key.push(head.method.as_str().as_bytes());
        key.push(b" ");
        key.push(matched.as_str().as_bytes());
        Ok(())
    }
}

/// The key a function makes of a request: a claim, a tenant, a session.
///
/// ```
/// use tollway_tower::{Head, keys::from_fn};
///
/// #[derive(Clone)]
/// struct Claims { subject: String }
///
/// let subject = from_fn(|head: &Head<'_>| {
///     head.extensions.get::<Claims>().map(|claims| claims.subject.clone())
/// });
/// # let _ = subject;
/// ```
pub fn from_fn<F, K>(function: F) -> FromFn<F>
where
    F: Fn(&Head<'_>) -> Option<K> + Send + Sync + 'static,
    K: AsRef<[u8]>,
{
    FromFn(function)
}

/// See [`from_fn`].
#[derive(Clone)]
pub struct FromFn<F>(F);

impl<F, K> KeySource for FromFn<F>
where
    F: Fn(&Head<'_>) -> Option<K> + Send + Sync + 'static,
    K: AsRef<[u8]>,
{
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        match (self.0)(head).as_ref().map(AsRef::as_ref) {
            None | Some([]) => Err(NoKey::Missing),
            Some(bytes) => {
                key.push(bytes);
                Ok(())
            }
        }
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("FromFn")
    }
}

/// See [`KeySource::and`].
#[derive(Debug, Clone)]
pub struct And<A, B>(A, B);

impl<A: KeySource, B: KeySource> KeySource for And<A, B> {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        let start = key.len();
        self.0.write_key(head, key)?;
        // Without the first part's length after it, "a" with "bc" and "ab" with "c" would be one.
        let first_len = (key.len() - start) as u32;
        self.1.write_key(head, key)?;
        key.push(&first_len.to_be_bytes());
        Ok(())
    }
}

/// See [`KeySource::or`].
#[derive(Debug, Clone)]
pub struct Or<A, B>(A, B);

impl<A: KeySource, B: KeySource> KeySource for Or<A, B> {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        let start = key.len();
        key.push(b"1:");
        match self.0.write_key(head, key) {
            Err(NoKey::Missing) => {
                key.truncate(start);
                key.push(b"2:");
                self.1.write_key(head, key)
            }
            found => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_growing_out_of_the_stack_and_back() {
        let mut key = KeyBuf::new();
        let mut expected = Vec::new();
        for round in 0..40u8 {
            key.push(&[round; 7]);
            key.push_short(u128::from_le_bytes([round; 16]), 3);
            expected.extend([round; 10]);
            assert_eq!(key.bytes(), expected);
        }
        for len in [300, 65, 64, 63, 10, 0] {
            key.truncate(len);
            expected.truncate(len);
            assert_eq!((key.bytes(), key.len()), (&expected[..], expected.len()));
            key.push(b"x");
            expected.push(b'x');
            assert_eq!(key.bytes(), expected);
            key.truncate(len);
            expected.truncate(len);
        }
    }
}
