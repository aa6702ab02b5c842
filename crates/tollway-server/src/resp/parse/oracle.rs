//! What the `redis-protocol` crate makes of the same bytes: shared by the unit tests and the fuzz
//! target.

use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

/// The arguments of an array of bulk strings, and how many bytes it took.
pub(crate) fn oracle(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (frame, used) = decode(input).ok()??;
    let OwnedFrame::Array(frames) = frame else { return None };
    let bulk = |frame| match frame {
        OwnedFrame::BulkString(bytes) => Some(bytes),
        _ => None,
    };
    Some((frames.into_iter().map(bulk).collect::<Option<_>>()?, used))
}
