use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

fn framed(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
    bytes.extend_from_slice(payload);
    bytes
}

/// What is read of `sent`, cut at `cuts`.
fn passed(sent: &[u8], cuts: &[usize]) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut stream = in_parts(sent, cuts);
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        read
    })
}

fn in_parts(sent: &[u8], cuts: &[usize]) -> Renamed<Parts> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (sent.len() + 1)).collect();
    cuts.extend([0, sent.len()]);
    cuts.sort_unstable();
    let parts = cuts.windows(2).map(|cut| sent[cut[0]..cut[1]].to_vec());
    Renamed::new(Parts(parts.filter(|part| !part.is_empty()).collect()))
}

/// A stream that gives one part per read.
struct Parts(std::collections::VecDeque<Vec<u8>>);

impl AsyncRead for Parts {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut part) = self.0.pop_front() {
            let rest = part.split_off(part.len().min(room.remaining()));
            room.put_slice(&part);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// As grpcio 1.85 writes it.
const BLOCK: &[u8] = b"\x40\x05:path\x04/a/b\x40\x0a:authority\x10tmp%2Fgtest.sock\x83\x86";
const RENAMED: &[u8] = b"\x40\x05:path\x04/a/b\x40\x0a:authority\x09localhost\x83\x86";

#[test]
fn the_name_of_a_socket_becomes_a_host() {
    let preface = [b'P'; PREFACE_BYTES];
    let settings = framed(4, 0, &[0; 6]);
    let data = framed(0, 1, b"\0\0\0\0\0");
    let sent = [&preface[..], &settings, &framed(1, 4, BLOCK), &data].concat();
    let expected = [&preface[..], &settings, &framed(1, 4, RENAMED), &data].concat();
    assert_eq!(passed(&sent, &[]), expected);
    // In several frames, padded, with a priority.
    let padded = [&[2][..], b"12345", &BLOCK[..20], &[0, 0]].concat();
    let frames =
        [framed(1, 8 | 32, &padded), framed(9, 0, &BLOCK[20..30]), framed(9, 4, &BLOCK[30..])];
    let sent = [&preface[..], &frames.concat(), &data].concat();
    let head = [&b"12345"[..], RENAMED].concat();
    let expected = [&preface[..], &framed(1, 4 | 32, &head), &data].concat();
    assert_eq!(passed(&sent, &[]), expected);
}

#[test]
fn every_way_to_write_the_name_is_known() {
    for (block, expected) in [
        (&b"\x41\x03a%b"[..], &b"\x41\x09localhost"[..]),
        (b"\x01\x03a%b\x83", b"\x01\x09localhost\x83"),
        (b"\x11\x03a%b", b"\x11\x09localhost"),
        (b"\x3f\x00\x82\x41\x83\xff\xff\xff", b"\x3f\x00\x82\x41\x09localhost"),
    ] {
        assert_eq!(renamed(block).as_deref(), Some(expected), "{}", block.escape_ascii());
    }
    let packed = [&[0x40, 0x88][..], AUTHORITY_PACKED, b"\x01x"].concat();
    assert!(renamed(&packed).unwrap().ends_with(LOCALHOST));
    for block in
        [&b""[..], b"\x82\x84", b"\x40\x05:path\x04/a/b", b"\x41\x7f\xff\xff\xff\xff", b"\x41"]
    {
        assert_eq!(renamed(block), None, "{}", block.escape_ascii());
    }
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(300))]

    #[test]
    fn cuts_change_nothing(cuts in prop::collection::vec(any::<usize>(), 0..12)) {
        let preface = [b'P'; PREFACE_BYTES];
        let frames = [framed(4, 0, &[0; 6]), framed(1, 4, BLOCK), framed(0, 1, b"\0\0\0\0\0")];
        let sent = [&preface[..], &frames.concat(), &framed(1, 4, BLOCK)].concat();
        prop_assert_eq!(passed(&sent, &cuts), passed(&sent, &[]));
    }

    #[test]
    fn bytes_that_are_no_frames_pass_to_the_end(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        prop_assert_eq!(passed(&bytes, &cuts), passed(&bytes, &[]));
    }
}
