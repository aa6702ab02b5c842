use super::*;

/// An outage begins with a call of which nobody knows whether it was done.
#[test]
fn what_is_kept_for_a_store_that_is_gone_has_a_bound() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let mut replica = Replica::of(Arc::clone(&profile), Settings::default(), 1);
    let claim = Claim::new(profile.route("GET", "/users/@me"));
    let now = Timestamp::from_millis(1_000);
    replica.stand(1, claim.clone(), 1, None, None);
    assert!(replica.next_call(2, now).is_some());
    replica.lost();
    for number in 3..10_000 {
        replica.let_go(number, claim.clone(), now);
        replica.answered(number, Observation::default(), now);
    }
    assert!(replica.pending.len() <= SETTLED_MAX + 2, "{}", replica.pending.len());
    let stands = |input: &Input| matches!(input, Input::Stand { number: 1, .. });
    assert!(replica.pending.iter().any(stands), "whoever waits still waits");
    let told = |input: &Input| matches!(input, Input::Settle { number: 9_999, .. });
    assert!(replica.pending.iter().any(told), "the last are told");
}

/// How many share a limit is asked just then.
#[test]
fn who_is_in_the_documents_is_known_when_a_call_was_lost() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let replica = |me| Replica::of(Arc::clone(&profile), Settings::default(), me);
    let (mut one, mut two) = (replica(1), replica(2));
    let claim = Claim::new(profile.route("GET", "/users/@me"));
    let now = Timestamp::from_millis(1_000);
    one.stand(1, claim.clone(), 1, None, None);
    let written = one.next_call(2, now).expect("it stands in line").written;
    let [account, group] = written.map(Option::unwrap_or_default);
    two.stand(1, claim, 1, None, None);
    assert!(two.next_call(2, now).is_some());
    let (blocked, counter) = (Duration::ZERO, Counter::default());
    two.reply(Reply::Conflict { account, group, blocked, counter }, now);
    assert!(two.next_call(3, now).is_some());
    two.lost();
    assert_eq!(two.seen_processes(now), BTreeSet::from([1]));
}
