//! Protocol buffers as bytes, written from the format's description and not by our own types: what
//! both sides of a test misread alike would not be noticed.

/// A whole number in a field.
pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// Text or a message in a field.
pub(crate) fn bytes(field: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut digits = Vec::new();
    while value >= 0x80 {
        digits.push(value as u8 | 0x80);
        value >>= 7;
    }
    digits.push(value as u8);
    digits
}

/// What is in a field.
#[derive(Clone, Debug)]
enum Content {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Vec<(u64, Content)>);

impl Fields {
    pub(crate) fn of(mut message: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !message.is_empty() {
            let key = take_varint(&mut message);
            let content = match key & 7 {
                0 => Content::Number(take_varint(&mut message)),
                2 => {
                    let length = take_varint(&mut message) as usize;
                    let (content, rest) = message.split_at(length);
                    message = rest;
                    Content::Bytes(content.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, content));
        }
        Self(fields)
    }

    fn content(&self, field: u64) -> Option<&Content> {
        self.0.iter().find(|(number, _)| *number == field).map(|(_, content)| content)
    }

    pub(crate) fn text(&self, field: u64) -> String {
        match self.content(field) {
            Some(Content::Bytes(bytes)) => String::from_utf8(bytes.clone()).unwrap(),
            None => String::new(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn number(&self, field: u64) -> u64 {
        match self.content(field) {
            Some(Content::Number(number)) => *number,
            None => 0,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn message(&self, field: u64) -> Option<Self> {
        match self.content(field)? {
            Content::Bytes(bytes) => Some(Self::of(bytes)),
            other => panic!("{other:?}"),
        }
    }
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (digit, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(digit & 0x7f) << shift;
        shift += 7;
        if digit & 0x80 == 0 {
            return value;
        }
    }
}
