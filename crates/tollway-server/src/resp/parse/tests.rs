use proptest::prelude::*;

use super::oracle::oracle;
use super::*;

fn parsed(input: &[u8]) -> Result<(Vec<&[u8]>, Frame), ProtocolError> {
    let mut args = Vec::new();
    parse(input, &Bounds::default(), &mut args).map(|frame| (args, frame))
}

#[test]
fn an_array_of_bulk_strings_is_a_command() {
    let input = b"*2\r\n$4\r\nPING\r\n$0\r\n\r\nrest";
    let expected: Vec<&[u8]> = vec![b"PING", b""];
    assert_eq!(parsed(input), Ok((expected, Frame::Command { used: 20 })));
}

#[test]
fn keys_are_any_bytes() {
    let input = b"*1\r\n$6\r\n\0\r\n\xff*$\r\n";
    let expected: Vec<&[u8]> = vec![b"\0\r\n\xff*$"];
    assert_eq!(parsed(input), Ok((expected, Frame::Command { used: input.len() })));
}

#[test]
fn every_prefix_of_a_command_is_partial() {
    let input = b"*3\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$123\r\n";
    for end in 0..input.len() {
        assert_eq!(parsed(&input[..end]).map(|(_, frame)| frame), Ok(Frame::Partial), "{end}");
    }
}

#[test]
fn inline_lines_are_split_at_spaces_outside_quotes() {
    for (line, expected) in [
        ("PING\r\n", vec!["PING"]),
        ("  TOLL.CHECK   api \"a b\" COST 2\n", vec!["TOLL.CHECK", "api", "a b", "COST", "2"]),
        ("SET 'x\"y' \"\"\r\n", vec!["SET", "x\"y", ""]),
        ("\r\n", vec![]),
    ] {
        let (args, frame) = parsed(line.as_bytes()).unwrap();
        assert_eq!(args, expected.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>());
        assert_eq!(frame, Frame::Command { used: line.len() });
    }
}

#[test]
fn null_and_empty_arrays_are_empty_commands() {
    for input in [&b"*0\r\n"[..], b"*-1\r\n"] {
        let (args, frame) = parsed(input).unwrap();
        assert!(args.is_empty());
        assert_eq!(frame, Frame::Command { used: input.len() });
    }
}

#[test]
fn what_can_never_be_a_command_is_refused_at_once() {
    for (input, error) in [
        (&b"*x\r\n"[..], ProtocolError::ArrayLength),
        (b"*01\r\n", ProtocolError::ArrayLength),
        (b"*+1\r\n", ProtocolError::ArrayLength),
        (b"*9999999\r\n", ProtocolError::ArrayLength),
        (b"*99999999999999999999999", ProtocolError::ArrayLength),
        (b"*1\n", ProtocolError::ArrayLength),
        (b"*1\r\n:1\r\n", ProtocolError::ExpectedBulk(b':')),
        (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$536870912\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$9223372036854775807\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$1\r\nabc", ProtocolError::BulkEnd),
        (b"PING \"x\r\n", ProtocolError::Quotes),
        (b"PING \"x\"y\r\n", ProtocolError::Quotes),
    ] {
        assert_eq!(parsed(input).map(|(_, frame)| frame), Err(error), "{}", input.escape_ascii());
    }
    let endless = vec![b'a'; LINE_BYTES_MAX];
    assert_eq!(parsed(&endless).map(|(_, frame)| frame), Err(ProtocolError::LineTooLong));
}

#[test]
fn integers_are_read_as_redis_reads_them() {
    assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
    for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "0x1"] {
        assert_eq!(integer(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn units_reach_as_far_as_costs_do() {
    assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
    for text in ["", "-1", "+1", "01", "18446744073709551616", "1 "] {
        assert_eq!(unsigned(text.as_bytes()), None, "{text:?}");
    }
}

fn encoded(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(2_000))]

    #[test]
    fn what_a_client_encodes_is_what_we_read(
        args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        rest in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut bytes = encoded(&args);
        let used = bytes.len();
        bytes.extend_from_slice(&rest);
        let (read, frame) = parsed(&bytes).unwrap();
        prop_assert_eq!(frame, Frame::Command { used });
        prop_assert_eq!(&read, &args.iter().map(Vec::as_slice).collect::<Vec<_>>());
        if !args.is_empty() {
            prop_assert_eq!(oracle(&bytes), Some((args, used)));
        }
    }

    #[test]
    fn mangled_commands_are_read_as_redis_protocol_reads_them_or_refused(
        args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..5),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&args);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok((read, Frame::Command { used })) = parsed(&bytes)
            && bytes.first() == Some(&b'*')
            && !read.is_empty()
        {
            let owned = read.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>();
            prop_assert_eq!(oracle(&bytes), Some((owned, used)));
        }
    }

    #[test]
    fn random_bytes_never_panic_nor_read_beyond_the_input(
        bytes in prop::collection::vec(prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'),
            Just(b'1'), Just(b'-'), any::<u8>()], 0..200),
    ) {
        if let Ok((_, Frame::Command { used })) = parsed(&bytes) {
            prop_assert!(used <= bytes.len());
        }
    }
}
