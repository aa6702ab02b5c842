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

fn possible(world: &World) -> Vec<Event> {
    let mut events = Vec::from([Event::Second, Event::Restart]);
    for index in 0..HOLDERS {
        let peer = &world.peers[index];
        if peer.id.is_none() {
            events.push(Event::Join(index));
        } else {
            events.push(Event::Cut(index));
            events.push(Event::Report(index));
        }
        if !peer.sent.is_empty() {
            events.push(Event::Deliver(index));
        }
        if !peer.acknowledged.is_empty() {
            events.push(Event::Acknowledge(index));
        }
        if peer.bucket.is_some() {
            events.push(Event::Spend(index));
        }
    }
    events
}

/// Looks at all worlds within reach, the nearest first.
fn explore(quota: &str, worlds_max: usize) -> usize {
    let mut known = HashSet::new();
    let mut layer = Vec::from([World::new(terms(quota, 3), HOLDERS)]);
    while !layer.is_empty() && known.len() < worlds_max {
        let mut following = Vec::new();
        for world in &layer {
            for event in possible(world) {
                let world = next(world, event);
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
