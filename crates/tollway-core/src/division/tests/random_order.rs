//! Larger worlds in random orders: late, lost and reordered among holders.

use super::world::World;
use super::*;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// One world of `seed`; says how much it admitted.
fn play(seed: u64) -> u64 {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.roll(2);
    }
    let quotas = ["100/s burst 100", "7/s burst 20", "10/1m burst 10", "50/s burst 3"];
    let quota = quotas[dice.roll(4) as usize];
    let holders = 1 + dice.roll(5) as usize;
    let mut world = World::new(terms(quota, 6 + dice.roll(10)), holders);
    // How lazy the network is: something arrives in one of so many steps.
    let (lazy, trouble) = (1 + dice.roll(30), 50 + dice.roll(2_000));
    let mut loads: Vec<u64> = (0..holders).map(|_| dice.roll(30)).collect();
    for _ in 0..1_500 {
        world.pass(Duration::from_millis(1 + dice.roll(120)));
        for (index, load) in loads.iter_mut().enumerate() {
            if dice.roll(200) == 0 {
                *load = [0, 1, 5, 40][dice.roll(4) as usize];
            }
            // Hoards, then spends everything at once.
            if dice.roll(3) == 0 {
                world.ask(index, *load);
            }
            match world.peers[index].id {
                None if dice.roll(20) == 0 => world.join(index),
                Some(_) if dice.roll(60) == 0 => world.report(index),
                Some(_) if dice.roll(trouble) == 0 => world.cut(index),
                _ => {}
            }
            if dice.roll(lazy) == 0 {
                world.deliver(index);
            }
            if dice.roll(lazy) == 0 {
                world.acknowledge(index);
            }
            // A process that is killed has an empty memory when it is back.
            if dice.roll(4 * trouble) == 0 {
                world.cut(index);
                world.peers[index].bucket = None;
            }
        }
        if dice.roll(8 * trouble) == 0 {
            world.restart();
        }
    }
    world.peers.iter().map(|peer| peer.admitted).sum()
}

#[test]
fn late_and_lost_messages_and_deaths_never_admit_one_too_many() {
    let seeds = if is_full() { 20_000 } else { 150 };
    let admitted: u64 = (0..seeds).map(play).sum();
    assert!(admitted > seeds * 20, "the worlds admit something: {admitted}");
}
