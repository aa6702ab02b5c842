//! The RESP parser reads what the `redis-protocol` crate reads, or refuses it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
use tollway_server::resp::parse::{Bounds, Frame, parse};

/// The arguments of an array of bulk strings, and how many bytes it took.
fn oracle(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (frame, used) = decode(input).ok()??;
    let OwnedFrame::Array(frames) = frame else { return None };
    let bulk = |frame| match frame {
        OwnedFrame::BulkString(bytes) => Some(bytes),
        _ => None,
    };
    Some((frames.into_iter().map(bulk).collect::<Option<_>>()?, used))
}

fuzz_target!(|input: &[u8]| {
    let mut args = Vec::new();
    let parsed = parse(input, &Bounds::default(), &mut args);
    match parsed {
        Ok(Frame::Command { used }) => {
            assert!(used <= input.len());
            if input.first() == Some(&b'*') && !args.is_empty() {
                let owned = args.iter().map(|arg| arg.to_vec()).collect();
                assert_eq!(oracle(input), Some((owned, used)));
            }
            // Whatever follows a whole command changes nothing about it.
            let mut again = Vec::new();
            let alone = parse(&input[..used], &Bounds::default(), &mut again);
            assert_eq!((alone, &again), (Ok(Frame::Command { used }), &args));
            // A part of it is a part, or is refused.
            for end in [used / 2, used.saturating_sub(1)] {
                let part = parse(&input[..end], &Bounds::default(), &mut again);
                assert!(matches!(part, Ok(Frame::Partial) | Err(_)) || end == used, "cut at {end}");
            }
        }
        Ok(Frame::Partial) => assert_eq!(oracle(input), None),
        // Strictness is ours: what Redis refuses, the other crate may read.
        Err(_) => {}
    }
});
