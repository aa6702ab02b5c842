//! How much of the quota is used when nothing breaks.

use super::world::World;
use super::*;

/// Whether `admitted` is at least 95 % of what the rate gives in `secs`.
fn is_used(admitted: u64, rate: u64, secs: u64) -> bool {
    admitted * 100 >= rate * secs * 95
}

#[test]
fn a_lone_holder_uses_the_rate() {
    let mut world = World::new(terms("100/s burst 100", 15), 1);
    world.join(0);
    world.run_for(Duration::from_secs(10), &[Some(1_000)]);
    let admitted = world.run_for(Duration::from_secs(60), &[Some(1_000)]);
    assert!(is_used(admitted, 100, 60), "{admitted}");
}

#[test]
fn a_shift_of_load_is_followed_within_two_reports() {
    for (quota, rate) in [("100/s burst 100", 100), ("100/s burst 20", 100), ("20/s burst 200", 20)]
    {
        let mut world = World::new(terms(quota, 15), 4);
        (0..4).for_each(|index| world.join(index));
        let (busy, idle) = (Some(400), Some(0));
        world.run_for(Duration::from_secs(60), &[busy, idle, idle, idle]);
        for rates in [[idle, busy, idle, idle], [idle, idle, busy, busy], [busy; 4]] {
            world.run_for(Duration::from_secs(10), &rates);
            let admitted = world.run_for(Duration::from_secs(30), &rates);
            assert!(is_used(admitted, rate, 30), "{quota}, {rates:?}: {admitted} of {}", rate * 30);
        }
    }
}

#[test]
fn nobody_gets_more_while_somebody_modest_lacks_it() {
    let mut world = World::new(terms("100/s burst 100", 15), 3);
    (0..3).for_each(|index| world.join(index));
    let rates = [Some(1_000), Some(20), Some(1_000)];
    world.run_for(Duration::from_secs(20), &rates);
    let before: Vec<u64> = world.peers.iter().map(|peer| peer.admitted).collect();
    world.run_for(Duration::from_secs(60), &rates);
    let got: Vec<u64> =
        world.peers.iter().zip(before).map(|(peer, before)| peer.admitted - before).collect();
    assert!(got[1] * 100 >= 20 * 60 * 95, "{got:?}");
    assert!(got[0].abs_diff(got[2]) * 5 <= got[0], "{got:?}");
}

#[test]
fn the_rate_is_used_again_within_one_lifetime_of_a_death() {
    let mut world = World::new(terms("100/s burst 100", 15), 2);
    (0..2).for_each(|index| world.join(index));
    let rates = [Some(400), Some(400)];
    world.run_for(Duration::from_secs(30), &rates);
    world.cut(0);
    world.peers[0].bucket = None;
    world.run_for(Duration::from_secs(21), &[None, Some(400)]);
    let admitted = world.run_for(Duration::from_secs(30), &[None, Some(400)]);
    assert!(is_used(admitted, 100, 30), "after the death of a holder: {admitted}");
    world.restart();
    world.join(1);
    world.run_for(Duration::from_secs(21), &[None, Some(400)]);
    let admitted = world.run_for(Duration::from_secs(30), &[None, Some(400)]);
    assert!(is_used(admitted, 100, 30), "after the death of the service: {admitted}");
}
