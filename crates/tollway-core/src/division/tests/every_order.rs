//! A small world, in which everything that can happen happens in every order.

extern crate std;

use std::collections::HashSet;

use super::world::World;
use super::*;

const HOLDERS: usize = 2;

/// Everything that can happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Second,
    Join(usize),
    Cut(usize),
    Report(usize),
    Deliver(usize),
    Acknowledge(usize),
    Spend(usize),
    Restart,
}

fn next(world: &World, event: Event) -> World {
    let mut world = world.clone();
    match event {
        Event::Second => world.pass(Duration::from_secs(1)),
        Event::Join(index) => world.join(index),
        Event::Cut(index) => world.cut(index),
        Event::Report(index) => world.report(index),
        Event::Deliver(index) => world.deliver(index),
        Event::Acknowledge(index) => world.acknowledge(index),
        Event::Spend(index) => {
            world.ask(index, 9);
        }
        Event::Restart => world.restart(),
    }
    world
}

/// How often connections break or the service dies on the way to a world.
const TROUBLES_MAX: u8 = 2;

fn possible(world: &World, troubles: u8) -> Vec<Event> {
    let mut events = Vec::from([Event::Second]);
    if troubles < TROUBLES_MAX {
        events.push(Event::Restart);
    }
    for index in 0..HOLDERS {
        let peer = &world.peers[index];
        match peer.id {
            None => events.push(Event::Join(index)),
            Some(_) if troubles < TROUBLES_MAX => events.push(Event::Cut(index)),
            Some(_) => {}
        }
        // A report that says nothing new is the same as none.
        if peer.id.is_some() && peer.asked > 0 {
            events.push(Event::Report(index));
        }
        if !peer.sent.is_empty() {
            events.push(Event::Deliver(index));
        }
        if !peer.acknowledged.is_empty() {
            events.push(Event::Acknowledge(index));
        }
        if world.has_tokens(index) {
            events.push(Event::Spend(index));
        }
    }
    events
}

/// Looks at all worlds within reach of one in which both holders are known and told, the nearest
/// first.
fn explore(quota: &str, worlds_max: usize) -> usize {
    let mut known = HashSet::new();
    let mut world = World::new(terms(quota, 3), HOLDERS);
    for index in 0..HOLDERS {
        world.join(index);
    }
    for _ in 0..6 {
        for index in 0..HOLDERS {
            world.deliver(index);
            world.acknowledge(index);
        }
        world.pass(Duration::from_secs(1));
    }
    let mut layer = Vec::from([(world, 0)]);
    while !layer.is_empty() && known.len() < worlds_max {
        let mut following = Vec::new();
        for (world, troubles) in &layer {
            for event in possible(world, *troubles) {
                let troubles = troubles + u8::from(matches!(event, Event::Cut(_) | Event::Restart));
                let world = (next(world, event), troubles);
                if known.insert(world.clone()) {
                    following.push(world);
                }
            }
        }
        layer = following;
    }
    known.len()
}

#[test]
fn in_no_order_of_events_one_request_too_many_is_admitted() {
    let worlds_max = if is_full() { 1_000_000 } else { 20_000 };
    for quota in ["1/s burst 3", "3/s burst 2", "1/s burst 1"] {
        assert!(explore(quota, worlds_max) >= worlds_max);
    }
}
