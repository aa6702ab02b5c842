//! Replies into bytes, in RESP2 or RESP3 as the client asked.

/// The protocol version of a connection: 2 unless `HELLO 3` was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    /// RESP2: five types.
    #[default]
    Two,
    /// RESP3: maps, booleans and a null of its own.
    Three,
}

/// Appends replies to a connection's output.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> Encoder<'a> {
    /// An encoder that appends to `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// The protocol version spoken.
    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// `+text`
    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `-text`; line breaks in it become spaces, since they would end the reply.
    pub(crate) fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let flat = |byte: u8| if byte == b'\r' || byte == b'\n' { b' ' } else { byte };
        self.out.extend(text.bytes().map(flat));
        self.out.extend_from_slice(b"\r\n");
    }

    /// `:number`
    #[inline]
    pub(crate) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// A count or a time, at most [`i64::MAX`].
    #[inline]
    pub(crate) fn unsigned(&mut self, number: u64) {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// `$len`, then the bytes.
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.count(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The start of an array; `len` replies must follow.
    pub(crate) fn array(&mut self, len: usize) {
        self.count(b'*', len);
    }

    /// The start of a map; `len` pairs of replies must follow. A flat array in RESP2.
    pub(crate) fn map(&mut self, len: usize) {
        match self.version {
            Version::Two => self.count(b'*', len * 2),
            Version::Three => self.count(b'%', len),
        }
    }

    /// Nothing.
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// Five integers: the answer of the throttle commands, written as one piece.
    #[inline]
    pub(crate) fn five(&mut self, numbers: [i64; 5]) {
        self.out.reserve(5 * 24);
        self.out.extend_from_slice(b"*5\r\n");
        for number in numbers {
            self.integer(number);
        }
    }

    fn count(&mut self, kind: u8, len: usize) {
        self.number(kind, i64::try_from(len).unwrap_or(i64::MAX));
    }

    #[inline]
    fn number(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        match number {
            0..=9 => self.out.push(b'0' + number as u8),
            _ => self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(version: Version, encode: impl FnOnce(&mut Encoder<'_>)) -> String {
        let mut out = Vec::new();
        encode(&mut Encoder::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn types_that_resp2_lacks_are_said_in_those_it_has() {
        let encode = |encoder: &mut Encoder<'_>| {
            encoder.map(1);
            encoder.integer(1);
            encoder.null();
        };
        assert_eq!(encoded(Version::Two, encode), "*2\r\n:1\r\n$-1\r\n");
        assert_eq!(encoded(Version::Three, encode), "%1\r\n:1\r\n_\r\n");
    }

    #[test]
    fn an_error_is_always_one_line() {
        let text = encoded(Version::Two, |encoder| encoder.error("ERR a\r\n+OK"));
        assert_eq!(text, "-ERR a  +OK\r\n");
    }

    #[test]
    fn numbers_keep_every_digit() {
        let numbers = [0, 9, 10, -1, i64::MIN];
        assert_eq!(
            encoded(Version::Two, |encoder| encoder.five(numbers)),
            "*5\r\n:0\r\n:9\r\n:10\r\n:-1\r\n:-9223372036854775808\r\n"
        );
    }
}
