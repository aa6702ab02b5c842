//! What comes back: dead letters, released jobs, limits, queues.

use tollway_queue::{Limit, Outcome, QueueSettings};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, job, queue};

fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}

pub(super) fn a_revived_job_weighs_what_it_did(at: At) {
    let bench = Bench::new(at, "concurrent 5");
    bench.put(job("g").weight(5), START);
    let lease = bench.lease(START).remove(0);
    let dead = Outcome::Failed { reason: "no".to_owned(), retry: false };
    bench.settle(lease.token(), dead, START);
    assert!(get(bench.queues().revive(&bench.name, lease.id, START)));
    bench.put(job("g"), START);
    let again = bench.lease(START);
    assert_eq!(again.len(), 1, "it takes all there is");
    assert_eq!(again[0].id, lease.id);
    bench.settle(again[0].token(), DONE, START);
    assert_eq!(bench.lease(START).len(), 1);
}

pub(super) fn a_limit_that_goes_and_comes_back_is_held_by_nobody(at: At) {
    let bench = Bench::with(at, QueueSettings::default());
    let set = |queue_limits: Vec<Limit>| {
        let settings = QueueSettings { queue_limits, ..QueueSettings::default() };
        get(bench.queues().put_queue(&bench.name, settings, START));
    };
    set(vec![limit("concurrent 2")]);
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 5], START));
    let running = bench.lease(START);
    assert_eq!(running.len(), 2);
    set(Vec::new());
    for lease in running {
        bench.settle(lease.token(), DONE, START);
    }
    set(vec![limit("concurrent 2")]);
    assert_eq!(bench.lease(after(1.0)).len(), 2);
}

pub(super) fn a_queue_that_is_removed_holds_nothing_of_what_it_shared(at: At) {
    let bench = Bench::with(at, QueueSettings::default());
    get(bench.queues().put_shared(&queue("all"), limit("concurrent 2"), START));
    let settings = || QueueSettings { shared: vec![queue("all")], ..QueueSettings::default() };
    get(bench.queues().put_queue(&bench.name, settings(), START));
    get(bench.queues().put_queue(&queue("other"), settings(), START));
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 2], START));
    get(bench.queues().enqueue(&queue("other"), vec![job("g"); 2], START));
    assert_eq!(bench.lease(START).len(), 2);
    let others = |now| get(bench.queues().lease(&queue("other"), 10, "w", now)).leases.len();
    assert_eq!(others(START), 0);
    assert!(get(bench.queues().remove_queue(&bench.name, START)));
    assert_eq!(others(START), 2);
}

pub(super) fn a_queue_that_shares_other_limits_keeps_what_it_holds_of_those_that_stay(at: At) {
    let bench = Bench::with(at, QueueSettings::default());
    let share = |name: &str, shared: &[&str]| {
        let shared = shared.iter().map(|name| queue(name)).collect();
        let settings = QueueSettings { shared, ..QueueSettings::default() };
        get(bench.queues().put_queue(&queue(name), settings, START));
    };
    let leases = |name: &str| get(bench.queues().lease(&queue(name), 10, "w", START)).leases;
    for limits in ["goes", "stays"] {
        get(bench.queues().put_shared(&queue(limits), limit("concurrent 2"), START));
    }
    share("q", &["goes", "stays"]);
    share("of.goes", &["goes"]);
    share("of.stays", &["stays"]);
    for name in ["q", "of.goes", "of.stays"] {
        get(bench.queues().enqueue(&queue(name), vec![job("g"); 4], START));
    }
    let running = leases("q");
    assert_eq!((running.len(), leases("of.goes").len(), leases("of.stays").len()), (2, 0, 0));
    share("q", &["stays"]);
    assert_eq!((leases("of.goes").len(), leases("of.stays").len()), (2, 0));
    for lease in running {
        get(bench.queues().settle(&queue("q"), vec![(lease.token(), DONE)], START));
    }
    assert_eq!(leases("of.stays").len(), 2);
}

pub(super) fn released_jobs_give_their_units_back_to_a_long_sliding_window(at: At) {
    let bench = Bench::new(at, "sliding 100/10s");
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 100], START));
    let leases = bench.lease(after(0.03));
    assert_eq!(leases.len(), 100);
    for lease in leases {
        bench.settle(lease.token(), Outcome::Released, after(0.07));
    }
    assert_eq!(bench.lease(after(0.1)).len(), 100);
}

pub(super) fn queues_whose_names_look_like_keys_are_queues_of_their_own(at: At) {
    let bench = Bench::new(at, "concurrent 5");
    get(bench.queues().put_shared(&queue("c"), limit("concurrent 5"), START));
    for name in ["q:f", "q:f:c", "s", "s:c", "u"] {
        let settings = QueueSettings { shared: vec![queue("c")], ..QueueSettings::default() };
        get(bench.queues().put_queue(&queue(name), settings, START));
        for (of, group) in [(&bench.name, "c"), (&queue(name), "c"), (&queue(name), "f:c")] {
            get(bench.queues().enqueue(of, vec![job(group)], START));
            let leases = get(bench.queues().lease(of, 10, "w", START)).leases;
            assert_eq!(leases.len(), 1, "{of} {group}");
            get(bench.queues().settle(of, vec![(leases[0].token(), DONE)], START));
        }
    }
}
