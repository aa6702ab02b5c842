//! Real processes, killed in the middle of their work.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tollway_queue::{Embedded, LeaseToken, Outcome, QueueSettings};

use super::{Acknowledged, judge, scratch};
use crate::world::{AtMoment as _, START, get, job, queue};

const PATH: &str = "TOLLWAY_QUEUE_CHILD";

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_killed_process_has_lost_nothing_it_acknowledged() {
    for kill_after in [1, 2, 3, 5, 8, 13, 40, 150] {
        let path = scratch(&format!("kill-{kill_after}"));
        let mut child = Killed(
            Command::new(std::env::current_exe().expect("this test"))
                .args(["crash::process::child", "--exact", "--ignored", "--nocapture"])
                .env(PATH, &path.0)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("this test starts again"),
        );
        let output = child.0.stdout.take().expect("piped");
        let mut seen = Acknowledged::default();
        let mut heard = 0;
        // What it said before it died was said by a whole process: read to the end.
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let Some((_, told)) = line.split_once('@') else { continue };
            let Some((what, id)) = told.split_once(' ') else { continue };
            let Ok(id) = id.parse() else { continue };
            match what {
                "enqueued" => seen.enqueued.insert(id),
                "leased" => seen.leased.insert(id),
                _ => seen.settled.insert(id),
            };
            heard += 1;
            if heard == kill_after {
                child.0.kill().expect("SIGKILL");
            }
        }
        drop(child);
        assert!(heard >= kill_after, "the child worked: {heard}");
        let queues = Embedded::open(&path.0).expect("a kill leaves a file that opens");
        judge(&queues, &seen, &format!("killed after {kill_after}"));
    }
}

/// Works for ever at the file that the environment names, and says what was acknowledged.
#[test]
#[ignore = "a child of the test above"]
#[allow(clippy::print_stdout, reason = "the parent reads what it prints")]
fn child() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else { return };
    let (queues, name) = (Embedded::open(path).expect("opens"), queue("q"));
    let settings = QueueSettings::with_limit("slots 1000/10s".parse().expect("a limit"));
    get(queues.put_queue(&name, settings, START));
    let mut tokens: Vec<LeaseToken> = Vec::new();
    loop {
        let enqueued = get(queues.enqueue(&name, vec![job("g"), job("h")], START));
        enqueued.iter().for_each(|job| println!("@enqueued {}", job.id));
        let leased = get(queues.lease(&name, 2, "w", START)).leases;
        leased.iter().for_each(|lease| println!("@leased {}", lease.id));
        tokens.extend(leased.iter().map(tollway_queue::Lease::token));
        if tokens.len() > 4 {
            let token = tokens.remove(0);
            get(queues.settle_one(&name, token, Outcome::Done { result: None }, START));
            println!("@settled {}", token.id);
        }
    }
}
