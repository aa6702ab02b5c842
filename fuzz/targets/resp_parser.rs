//! The RESP parser reads what the `redis-protocol` crate reads, or refuses it.

#![no_main]

#[path = "../../crates/tollway-server/src/resp/parse/oracle.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use oracle::oracle;
use tollway_server::testing::parse_resp;

fuzz_target!(|input: &[u8]| {
    match parse_resp(input) {
        Ok(Some((args, used))) => {
            assert!(used <= input.len());
            if input.first() == Some(&b'*') && !args.is_empty() {
                let owned = args.iter().map(|arg| arg.to_vec()).collect();
                assert_eq!(oracle(input), Some((owned, used)));
            }
            // Whatever follows a whole command changes nothing about it.
            assert_eq!(parse_resp(&input[..used]), Ok(Some((args, used))));
            // A part of it is a part, or is refused.
            for end in [used / 2, used.saturating_sub(1)] {
                let part = parse_resp(&input[..end]);
                assert!(matches!(part, Ok(None) | Err(_)) || end == used, "cut at {end}");
            }
        }
        Ok(None) => assert_eq!(oracle(input), None),
        // Strictness is ours: what Redis refuses, the other crate may read.
        Err(_) => {}
    }
});
