use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollway_core::{Timestamp, VirtualClock};

use crate::drain::Stopper;
use crate::service::tests::service_at;
use crate::worker::Worker;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Client {
    clock: Arc<VirtualClock>,
    worker: Worker,
}

impl Client {
    fn new() -> Self {
        let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_000_000)));
        Self { worker: Worker::new(service_at(Arc::clone(&clock))), clock }
    }

    /// Everything a connection that sends `bytes` and then nothing more is answered.
    async fn raw(&self, bytes: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(1 << 24);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let (_stopper, stop) = Stopper::new();
        super::serve(&self.worker, server, (7, PEER), stop).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The answer to inline commands, line by line.
    async fn lines(&self, commands: &str) -> Vec<String> {
        let bytes = commands.trim().replace('\n', "\r\n") + "\r\n";
        self.raw(bytes.as_bytes()).await.lines().map(str::to_owned).collect()
    }

    /// The answer to one command that answers integers.
    async fn numbers(&self, command: &str) -> Vec<i64> {
        let lines = self.lines(command).await;
        assert_eq!(lines[0], "*5", "{lines:?}");
        lines[1..].iter().map(|line| line[1..].parse().unwrap()).collect()
    }
}

/// (t ms, quantity, [limited, limit, remaining, retry s, reset s]): the vector that throttled and
/// redis-cell share, its milliseconds rounded up to seconds as redis-cell answers.
const VECTOR: [(u64, u64, [i64; 5]); 16] = [
    (0, 6, [1, 5, 5, -1, 0]),
    (0, 1, [0, 5, 4, -1, 1]),
    (0, 1, [0, 5, 3, -1, 2]),
    (0, 1, [0, 5, 2, -1, 3]),
    (0, 1, [0, 5, 1, -1, 4]),
    (0, 1, [0, 5, 0, -1, 5]),
    (0, 1, [1, 5, 0, 1, 5]),
    (3_000, 1, [0, 5, 2, -1, 3]),
    (3_100, 1, [0, 5, 1, -1, 4]),
    (4_000, 1, [0, 5, 1, -1, 4]),
    (8_000, 1, [0, 5, 4, -1, 1]),
    (9_500, 1, [0, 5, 4, -1, 1]),
    (9_500, 0, [0, 5, 4, -1, 1]),
    (9_500, 2, [0, 5, 2, -1, 3]),
    (9_500, 5, [1, 5, 2, 3, 3]),
    (15_000, 6, [1, 5, 5, -1, 0]),
];

#[tokio::test]
async fn cl_throttle_answers_redis_cells_own_vector() {
    let client = Client::new();
    let start = Timestamp::from_millis(1_000_000);
    for (at_ms, quantity, expected) in VECTOR {
        client.clock.set(start.after(Duration::from_millis(at_ms)));
        let answer = client.numbers(&format!("CL.THROTTLE k 4 1 1 {quantity}")).await;
        assert_eq!(answer, expected, "t={at_ms} q={quantity}");
    }
}

#[tokio::test]
async fn cl_throttle_and_gcra_agree_and_throttle_says_the_same_in_its_own_order() {
    let client = Client::new();
    assert_eq!(client.numbers("CL.THROTTLE user123 15 30 60").await, [0, 16, 15, -1, 2]);
    assert_eq!(client.numbers("GCRA user456 15 30 60 TOKENS 1").await, [0, 16, 15, -1, 2]);
    assert_eq!(client.numbers("THROTTLE user789 16 30 60").await, [1, 16, 15, 2, 0]);
    assert_eq!(client.numbers("THROTTLE user789 16 30 60 16").await, [0, 16, 15, 2, 2]);
    assert_eq!(client.numbers("THROTTLE user789 16 30 60 17").await, [0, 16, 15, 2, i64::MAX]);
}

#[tokio::test]
async fn a_key_keeps_its_state_when_the_numbers_change() {
    let client = Client::new();
    for (command, expected) in [
        ("CL.THROTTLE k 9 1 60 10", [0, 10, 0, -1, 600]),
        // Five more units are used than the new limit holds: they come back as slowly as they were
        // taken, or whoever brings both numbers in turn would have more than either.
        ("CL.THROTTLE k 4 1 1", [1, 5, 0, 301, 305]),
        ("CL.THROTTLE k 4 1 1 0", [1, 5, 0, 300, 305]),
        ("CL.THROTTLE k 9 1 60 0", [0, 10, 0, -1, 600]),
        ("CL.THROTTLE k 99 1 60", [0, 100, 89, -1, 660]),
        // 7 per second: not a whole number of nanoseconds, and still the same state.
        ("CL.THROTTLE k 13 7 1", [0, 14, 2, -1, 2]),
        ("THROTTLE k 100 1 60", [1, 100, 87, 780, 0]),
        ("GCRA k 99 1 0.5", [0, 100, 86, -1, 7]),
    ] {
        assert_eq!(client.numbers(command).await, expected, "{command}");
    }
}

#[tokio::test]
async fn a_negative_quantity_gives_back_and_zero_only_looks() {
    let client = Client::new();
    client.numbers("CL.THROTTLE k 4 1 1 3").await;
    assert_eq!(client.numbers("CL.THROTTLE k 4 1 1 0").await, [0, 5, 2, -1, 3]);
    assert_eq!(client.numbers("CL.THROTTLE k 4 1 1 -2").await, [0, 5, 4, -1, 1]);
    assert_eq!(client.numbers("CL.THROTTLE k 4 1 1 -9223372036854775808").await, [0, 5, 5, -1, 0]);
}

#[tokio::test]
async fn errors_are_redis_cells_and_throttlecrabs_own() {
    let client = Client::new();
    for (command, expected) in [
        (
            "CL.THROTTLE k 1 1",
            "-Cell error: Usage: CL.THROTTLE <key> <max_burst> <count per period> <period> [<quantity>]",
        ),
        ("CL.THROTTLE k x 1 1", "-Cell error: Couldn't parse as integer: x"),
        ("CL.THROTTLE k 1 0 1", "-Cell error: Zero rates are not supported"),
        ("CL.THROTTLE k 1 1 0", "-Cell error: Zero rates are not supported"),
        ("THROTTLE k 1 1", "-ERR wrong number of arguments for 'throttle' command"),
        ("THROTTLE k x 1 1", "-ERR invalid max_burst"),
        ("THROTTLE k 1 x 1", "-ERR invalid count_per_period"),
        ("THROTTLE k 1 1 1 x", "-ERR invalid quantity"),
        ("THROTTLE k 1 1 1 -1", "-ERR quantity cannot be negative"),
        ("GCRA k 1 1 0", "-ERR period must be > 0"),
        ("GCRA k 1 1 -1", "-ERR period must be > 0"),
        ("GCRA k 1 1 x", "-ERR value is not a valid float"),
        ("FLUSHALL", "-ERR unknown command 'FLUSHALL'"),
        ("TOLL.CHECK nope k", "-NOPOLICY no policy has this name"),
        ("TOLL.CHECK api", "-ERR wrong number of arguments; policy key [COST n] [COUNT] expected"),
        ("TOLL.CHECK api k COST 0", "-ERR COST must be a whole number from 1"),
        ("TOLL.CHECK api \"\"", "-ERR the key is empty"),
        ("TOLL.COMMIT 12", "-ERR reservation must be 32 hexadecimal digits"),
    ] {
        assert_eq!(client.lines(command).await, [expected], "{command}");
    }
}

#[tokio::test]
async fn numbers_that_would_overflow_are_refused_and_nothing_panics() {
    let client = Client::new();
    let edge = ["0", "1", "-1", "4294967295", "9223372036854775807", "-9223372036854775808"];
    for command in ["CL.THROTTLE", "THROTTLE", "GCRA"] {
        for burst in edge {
            for count in edge {
                for period in edge {
                    for quantity in edge {
                        let tokens = if command == "GCRA" { "TOKENS " } else { "" };
                        let line =
                            format!("{command} k {burst} {count} {period} {tokens}{quantity}");
                        let lines = client.lines(&line).await;
                        assert!(lines[0] == "*5" || lines[0].starts_with('-'), "{line}: {lines:?}");
                    }
                }
            }
        }
    }
    let refused = client.lines("THROTTLE k 4294967295 1 9223372036854775807").await;
    assert!(refused[0].starts_with("-ERR"), "{refused:?}");
}

#[tokio::test]
async fn a_pipeline_is_answered_in_order_each_command_seeing_those_before() {
    let client = Client::new();
    let lines = client
        .lines("THROTTLE a 1 1 60\nTHROTTLE a 1 1 60\nPING\nBOGUS\nTHROTTLE b 1 1 60\nPING x")
        .await;
    let allowed = ["*5", ":1", ":1", ":0", ":60", ":0"];
    let denied = ["*5", ":0", ":1", ":0", ":60", ":60"];
    let alone = ["+PONG", "-ERR unknown command 'BOGUS'"];
    let expected = [&allowed[..], &denied, &alone, &allowed, &["$1", "x"]].concat();
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_pipeline_longer_than_a_batch_is_answered_whole() {
    let client = Client::new();
    let count = 5_000;
    let answer = client.raw("PING\r\nTHROTTLE k 9 9 9\r\n".repeat(count).as_bytes()).await;
    assert_eq!(answer.matches("+PONG\r\n").count(), count);
    assert_eq!(answer.matches("*5\r\n").count(), count);
}

#[tokio::test]
async fn broken_framing_is_told_and_ends_the_connection_after_what_came_before() {
    let client = Client::new();
    let answer = client.raw(b"PING\r\n*1\r\n$536870912\r\nPING\r\n").await;
    assert_eq!(answer, "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
}

#[tokio::test]
async fn toll_check_takes_all_charges_or_none() {
    let client = Client::new();
    let lines = client.lines("TOLL.CHECK api a COST 5 api b COST 6").await;
    let denied = [
        "*4", ":0", "$3", "api", ":0", "*2", "*6", "$3", "api", ":1", ":5", ":5", ":-1", ":0",
        "*6", "$3", "api", ":0", ":5", ":5", ":-2", ":0",
    ];
    assert_eq!(lines, denied);
    let lines = client.lines("TOLL.PEEK api a").await;
    assert_eq!(lines[..5], ["*4", ":1", "$-1", ":0", "*1"]);
}

#[tokio::test]
async fn an_answer_begins_with_1_or_0_in_either_protocol() {
    let client = Client::new();
    let lines = client.lines("HELLO 3\nTOLL.CHECK api a COST 5\nTOLL.CHECK api a").await;
    assert_eq!(lines[0], "%7");
    let answer = lines.join(" ");
    let expected = "*4 :1 _ :0 *1 *6 $3 api :1 :5 :0 :-1 :1000 \
                    *4 :0 $3 api :0 *1 *6 $3 api :0 :5 :0 :200 :1000";
    assert!(answer.ends_with(expected), "{answer}");
}

#[tokio::test]
async fn a_transaction_takes_each_unit_once_and_nothing_before_exec() {
    let client = Client::new();
    let lines = client.lines("MULTI\nTHROTTLE k 9 1 60\nTOLL.CHECK api k\nPING\nDISCARD").await;
    assert_eq!(lines, ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+OK"]);
    assert_eq!(client.numbers("THROTTLE k 9 1 60 0").await[2], 9, "discarded");
    // A connection that leaves before EXEC has asked for nothing.
    client.lines("MULTI\nTHROTTLE k 9 1 60").await;
    assert_eq!(client.numbers("THROTTLE k 9 1 60 0").await[2], 9, "abandoned");
    let lines = client
        .lines("THROTTLE j 9 1 60\nMULTI\nTHROTTLE k 9 1 60\nPING\nTHROTTLE k 9 1 60\nEXEC\nPING")
        .await;
    let expected = "*5 :1 :9 :8 :60 :0 +OK +QUEUED +QUEUED +QUEUED \
                    *3 *5 :1 :9 :8 :60 :0 +PONG *5 :1 :9 :7 :120 :0 +PONG";
    assert_eq!(lines.join(" "), expected);
    assert_eq!(client.lines("MULTI\nEXEC").await, ["+OK", "*0"]);
}

#[tokio::test]
async fn a_transaction_with_a_mistake_is_refused_whole() {
    let client = Client::new();
    for (mistake, text) in [
        ("BOGUS", "-ERR unknown command 'BOGUS'"),
        ("TOLL.CHECK nope k", "-NOPOLICY no policy has this name"),
        ("THROTTLE k x 1 60", "-ERR invalid max_burst"),
        ("TOLL.COMMIT 12", "-ERR reservation must be 32 hexadecimal digits"),
        ("TOLL.TAKE api", "-ERR wrong number of arguments; policy key [COST n] [COUNT] expected"),
        ("HELLO 3", "-ERR Command not allowed inside a transaction"),
    ] {
        let lines = client.lines(&format!("MULTI\nTOLL.CHECK api k\n{mistake}\nPING\nEXEC")).await;
        let aborted = "-EXECABORT Transaction discarded because of previous errors.";
        assert_eq!(lines, ["+OK", "+QUEUED", text, "+QUEUED", aborted], "{mistake}");
    }
    assert_eq!(client.lines("TOLL.REFUND api k").await[2], ":5", "nothing was taken");
    assert_eq!(client.lines("EXEC").await, ["-ERR EXEC without MULTI"]);
    assert_eq!(client.lines("DISCARD").await, ["-ERR DISCARD without MULTI"]);
    assert!(client.lines("WATCH k").await[0].starts_with("-ERR WATCH is not supported"));
    let nested = client.lines("MULTI\nMULTI\nWATCH k\nPING\nEXEC").await;
    assert_eq!(nested[1], "-ERR MULTI calls can not be nested");
    assert_eq!(nested[2], "-ERR WATCH inside MULTI is not allowed");
    assert_eq!(nested[3..], ["+QUEUED", "*1", "+PONG"]);
    assert_eq!(client.lines("MULTI\nPING\nRESET\nEXEC").await[3], "-ERR EXEC without MULTI");
}

#[tokio::test]
async fn a_transaction_is_bounded() {
    let client = Client::new();
    let commands = ["MULTI\r\n", &"PING\r\n".repeat(1_025), "EXEC\r\n"].concat();
    let answer = client.raw(commands.as_bytes()).await;
    assert_eq!(answer.matches("+QUEUED").count(), 1_024);
    assert!(answer.contains("-ERR more than 1024 commands in one transaction"));
    assert!(answer.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    // Arguments cost memory though they be empty.
    let empty = ["*1000\r\n$4\r\nPING\r\n", &"$0\r\n\r\n".repeat(999)].concat();
    let commands = ["MULTI\r\n", &empty.repeat(40)].concat();
    let answer = client.raw(commands.as_bytes()).await;
    assert!(answer.contains("-ERR a transaction is longer than 1048576 bytes"), "{answer}");
}

#[tokio::test]
async fn what_a_browser_sends_over_tls_is_not_obeyed() {
    let client = Client::new();
    let answer = client.raw(b"\x16\x03\x01\x02ticket\r\nTOLL.CHECK api k\r\n").await;
    assert!(answer.starts_with("-ERR"), "{answer}");
    assert_eq!(answer.lines().count(), 1, "{answer}");
    assert_eq!(client.lines("TOLL.REFUND api k").await[2], ":5", "nothing was taken");
}

#[tokio::test]
async fn a_reservation_is_held_until_it_is_settled_once() {
    let client = Client::new();
    let lines = client.lines("TOLL.RESERVE api k COST 3").await;
    let id = lines[lines.len() - 2].clone();
    assert_eq!(id.len(), 32, "{lines:?}");
    let remaining = |lines: Vec<String>| lines[10].clone();
    assert_eq!(remaining(client.lines("TOLL.PEEK api k").await), ":2");
    assert_eq!(client.lines(&format!("TOLL.COMMIT {id} 1")).await, [":1"]);
    assert_eq!(remaining(client.lines("TOLL.PEEK api k").await), ":4");
    assert_eq!(client.lines(&format!("TOLL.CANCEL {id}")).await, [":0"]);
}

#[tokio::test]
async fn a_refund_gives_back_and_a_reset_forgets() {
    let client = Client::new();
    client.lines("TOLL.CHECK api k COST 4").await;
    assert_eq!(client.lines("TOLL.REFUND api k COST 2").await, ["*3", ":5", ":3", ":400"]);
    assert_eq!(client.lines("TOLL.RESET api k").await, ["+OK"]);
    assert_eq!(client.lines("TOLL.REFUND api k").await, ["*3", ":5", ":5", ":0"]);
}

#[tokio::test]
async fn keys_with_any_bytes_are_different_keys() {
    let client = Client::new();
    for key in [&b"\0"[..], b"\0\0", b"\r\n", b"\xff\xfe", b" "] {
        let mut command = b"*5\r\n$8\r\nTHROTTLE\r\n".to_vec();
        command.extend_from_slice(format!("${}\r\n", key.len()).as_bytes());
        command.extend_from_slice(key);
        command.extend_from_slice(b"\r\n$1\r\n1\r\n$1\r\n1\r\n$2\r\n60\r\n");
        assert!(client.raw(&command).await.starts_with("*5\r\n:1\r\n"), "{key:?}");
    }
}

#[tokio::test]
async fn clients_are_greeted_as_they_expect() {
    let client = Client::new();
    for (command, expected) in [
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("CLIENT SETNAME x", "+OK"),
        ("CLIENT SETINFO LIB-NAME x", "+OK"),
        ("CLIENT ID", ":7"),
        ("COMMAND COUNT", ":21"),
        ("AUTH x", "-ERR AUTH called without any token configured"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("RESET", "+RESET"),
        ("QUIT\nPING", "+OK"),
    ] {
        assert_eq!(client.lines(command).await, [expected], "{command}");
    }
    assert!(client.lines("INFO").await.iter().any(|line| line.starts_with("redis_version:")));
}
