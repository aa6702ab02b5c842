//! Several charges in one request: all or nothing, and truthful as a whole.

use proptest::prelude::*;
use tollway_core::{Algorithm, Charge, Key, Policy, State, Timestamp, Verdict, decide_all};

use crate::key::{Act, Beat, START, TICK, algorithm, config, cost, script};

/// States of a few keys under a policy each, and a request for some of them.
#[derive(Clone, Debug)]
struct Keys {
    policies: Vec<Policy>,
    states: Vec<State>,
    asked: u128,
}

/// Units of the key at a slot.
type KeyCost = (usize, u64);

impl Keys {
    /// Keys that lived through one script each; when the last of them ended.
    fn after(lives: Vec<(Algorithm, Vec<Beat>)>) -> (Self, Timestamp) {
        let mut keys = Self { policies: Vec::new(), states: Vec::new(), asked: 0 };
        let mut end = START;
        for (index, (algorithm, script)) in lives.into_iter().enumerate() {
            let mut key = crate::key::Key::new(algorithm);
            end = end.max(key.play(&script, START));
            let name = format!("policy {index}");
            keys.policies.push(Policy::new(name, algorithm).expect("the name is printable"));
            keys.states.push(key.state);
        }
        (keys, end)
    }

    fn request(&mut self, parts: &[KeyCost], now: Timestamp) -> Verdict {
        self.asked += 1;
        let key = Key::new("key").expect("it is not empty");
        let charge =
            |(slot, units): &KeyCost| Charge::new(&self.policies[*slot], key).cost(cost(*units));
        let charges: Vec<Charge<'_>> = parts.iter().map(charge).collect();
        let slots: Vec<usize> = parts.iter().map(|(slot, _)| *slot).collect();
        decide_all(&charges, &slots, &mut self.states, self.asked, now)
    }

    fn allows(&self, parts: &[KeyCost], now: Timestamp) -> bool {
        self.clone().request(parts, now).is_allowed()
    }

    fn remaining(&self, slot: usize, now: Timestamp) -> u64 {
        self.states[slot].peek(self.policies[slot].algorithm(), now).remaining()
    }
}

fn lives() -> impl Strategy<Value = Vec<(Algorithm, Vec<Beat>)>> {
    prop::collection::vec((algorithm(), script()), 3)
}

/// A request that names every key at most once.
fn distinct() -> impl Strategy<Value = Vec<KeyCost>> {
    let slots = prop::sample::subsequence(vec![0, 1, 2], 1..=3).prop_shuffle();
    (slots, prop::collection::vec(1..8u64, 3))
        .prop_map(|(slots, units)| slots.into_iter().zip(units).collect())
}

/// A request that may name a key several times.
fn repeated() -> impl Strategy<Value = Vec<KeyCost>> {
    prop::collection::vec((0..3usize, 1..8u64), 1..6)
}

/// What the request asks of one key in all.
fn total(parts: &[KeyCost], slot: usize) -> u64 {
    parts.iter().filter(|(other, _)| *other == slot).map(|(_, units)| units).sum()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_is_allowed_if_every_key_has_what_is_asked_of_it_in_all(
        lives in lives(), parts in repeated(),
    ) {
        let (mut keys, now) = Keys::after(lives);
        let affordable = (0..3).all(|slot| total(&parts, slot) <= keys.remaining(slot, now));
        prop_assert_eq!(keys.request(&parts, now).is_allowed(), affordable);
    }

    #[test]
    fn an_allowed_request_takes_every_charge_and_a_denied_one_none(
        lives in lives(), parts in repeated(),
    ) {
        let (mut keys, now) = Keys::after(lives);
        let before = keys.clone();
        let verdict = keys.request(&parts, now);
        prop_assert_eq!(verdict.decisions().len(), parts.len());
        if !verdict.is_allowed() {
            prop_assert_eq!(&keys.states, &before.states);
        }
        for slot in 0..3 {
            let taken = if verdict.is_allowed() { total(&parts, slot) } else { 0 };
            let expected = before.remaining(slot, now) - taken;
            prop_assert_eq!(keys.remaining(slot, now), expected);
        }
    }

    #[test]
    fn a_denied_request_shows_its_keys_untouched_and_names_whom_to_wait_for(
        lives in lives(), parts in repeated(),
    ) {
        let (mut keys, now) = Keys::after(lives);
        let before = keys.clone();
        let verdict = keys.request(&parts, now);
        let Some(denier) = verdict.denied_by() else { return Ok(()) };
        for (decision, (slot, _)) in verdict.decisions().iter().zip(&parts) {
            let algorithm = before.policies[*slot].algorithm();
            prop_assert_eq!(decision.snapshot(), before.states[*slot].peek(algorithm, now));
            prop_assert!(decision.retry() <= verdict.decisions()[denier].retry());
        }
    }

    #[test]
    fn a_request_that_waits_as_told_is_admitted_and_a_nanosecond_earlier_is_not(
        lives in lives(), parts in distinct(),
    ) {
        let (mut keys, now) = Keys::after(lives);
        if let Some(wait) = keys.request(&parts, now).retry().and_then(|retry| retry.after()) {
            prop_assert!(keys.allows(&parts, now.after(wait)));
            prop_assert!(!keys.allows(&parts, now.after(wait).before(TICK)));
        }
    }

    /// The charges on one key must wait for the sum of their costs, not for each by itself.
    #[test]
    fn a_request_that_names_a_key_twice_is_told_the_truth_too(
        lives in lives(), parts in repeated(),
    ) {
        let (mut keys, now) = Keys::after(lives);
        let limit = |slot: usize| keys.policies[slot].algorithm().limit();
        let hopeless = (0..3).any(|slot| total(&parts, slot) > limit(slot));
        match keys.request(&parts, now).retry() {
            None => {}
            Some(tollway_core::Retry::Never) => prop_assert!(hopeless),
            Some(tollway_core::Retry::After(wait)) => {
                prop_assert!(!hopeless);
                prop_assert!(keys.allows(&parts, now.after(wait)));
                prop_assert!(!keys.allows(&parts, now.after(wait).before(TICK)));
            }
        }
    }

    #[test]
    fn a_counted_charge_never_denies_and_is_not_taken_if_another_does(
        lives in lives(), units in 1..30u64, enforced in 1..30u64,
    ) {
        let (mut keys, now) = Keys::after(lives);
        let before = keys.clone();
        let key = Key::new("key").expect("it is not empty");
        let charges = [
            Charge::new(&before.policies[0], key).cost(cost(units)).counted(),
            Charge::new(&before.policies[1], key).cost(cost(enforced)),
        ];
        let verdict = decide_all(&charges, &[0, 1], &mut keys.states, 1, now);
        prop_assert!(verdict.decisions()[0].is_allowed());
        prop_assert_eq!(verdict.is_allowed(), enforced <= before.remaining(1, now));
        let counted = if verdict.is_allowed() { units } else { 0 };
        let expected = before.remaining(0, now).saturating_sub(counted);
        prop_assert_eq!(keys.remaining(0, now), expected);
    }
}

#[test]
fn a_request_for_nothing_is_allowed() {
    let verdict = decide_all(&[], &[], &mut [], 0, START);
    assert!(verdict.is_allowed() && verdict.decisions().is_empty());
    let mut key = crate::key::Key::new("1/1s".parse::<tollway_core::Quota>().unwrap().into());
    key.act(Act::Check(1), START);
    assert_eq!(key.peek(START).remaining(), 0);
}
