//! What a service's replies mean: verdicts, grants, snapshots and settlements, to the nanosecond.
//!
//! A reply that is not of the agreed shape reads as `None`, never as an allowance.

use std::time::Duration;

use redis::Value;
use tollway_core::{
    Decision, Grant, Policy, Reservation, ReservationId, Reserved, Retry, Settlement, Snapshot,
    Verdict,
};

/// `[allowed, denied_by, degraded, charges]` on charges to these policies.
pub(super) fn verdict(reply: &Value, policies: &[&Policy]) -> Option<Verdict> {
    let Value::Array(fields) = reply else { return None };
    summary(fields.get(..4)?, policies)
}

/// `[allowed, denied_by, degraded, charges, reservation or nil, expires_after_ns or nil]`.
pub(super) fn reserved(reply: &Value, policies: &[&Policy]) -> Option<Reserved> {
    let Value::Array(fields) = reply else { return None };
    let verdict = summary(fields.get(..4)?, policies)?;
    let reservation = match (fields.get(4)?, fields.get(5)?) {
        (Value::Nil, _) => None,
        (Value::BulkString(name), expires) => {
            let name = std::str::from_utf8(name).ok().filter(|name| name.len() == 32)?;
            let id = ReservationId(u128::from_str_radix(name, 16).ok()?);
            Some(Reservation { id, expires_after: duration(expires)? })
        }
        _ => return None,
    };
    // An allowance without a reservation could never be settled.
    (verdict.is_allowed() == reservation.is_some()).then_some(Reserved { verdict, reservation })
}

/// `[granted, charge]`.
pub(super) fn grant(reply: &Value) -> Option<Grant> {
    let Value::Array(fields) = reply else { return None };
    let [granted, charge] = &fields[..] else { return None };
    let (granted, decision) = (unsigned(granted)?, decision(charge)?);
    Some(Grant { granted, decision, store_failure: None })
}

/// `[limit, remaining, reset_after_ns, next_after_ns]`.
pub(super) fn snapshot(reply: &Value) -> Option<Snapshot> {
    let Value::Array(fields) = reply else { return None };
    let [limit, remaining, reset, next] = &fields[..] else { return None };
    let (limit, remaining) = (unsigned(limit)?, unsigned(remaining)?);
    Some(Snapshot::new(limit, remaining, duration(reset)?, duration(next)?))
}

/// 1 settled, 0 unknown.
pub(super) fn settlement(reply: &Value) -> Option<Settlement> {
    match reply {
        Value::Int(1) => Some(Settlement::Settled),
        Value::Int(0) => Some(Settlement::Unknown),
        _ => None,
    }
}

fn summary(fields: &[Value], policies: &[&Policy]) -> Option<Verdict> {
    let [allowed, _, degraded, Value::Array(charges)] = fields else { return None };
    let decisions: Vec<Decision> = charges.iter().map(decision).collect::<Option<_>>()?;
    if decisions.len() != policies.len() {
        return None;
    }
    let verdict = match decisions[..] {
        [decision] => Verdict::one(decision),
        _ => Verdict::new(decisions),
    };
    if truth(allowed)? != verdict.is_allowed() {
        return None;
    }
    let denier = verdict.denied_by();
    let verdict = match denier.and_then(|by| denying_owner(&charges[by], policies[by])) {
        Some(owner) => verdict.denied_by_owner_numbered(owner),
        None => verdict,
    };
    Some(if truth(degraded)? { verdict.degraded() } else { verdict })
}

/// The number of the owner that a charge ends with, among those that the policy has here.
fn denying_owner(charge: &Value, policy: &Policy) -> Option<usize> {
    let Value::Array(fields) = charge else { return None };
    let [.., Value::BulkString(key)] = &fields[..] else { return None };
    let owners = policy.shares()?.owners();
    owners.iter().position(|owner| owner.key.as_bytes() == key)
}

/// `[policy, allowed, limit, remaining, retry_after_ns, reset_after_ns, next_after_ns]`, and the
/// owner that denied if the policy has owners.
fn decision(charge: &Value) -> Option<Decision> {
    let Value::Array(fields) = charge else { return None };
    let (fields, owner) = fields.split_at_checked(7)?;
    let [_, allowed, limit, remaining, retry, reset, next] = fields else { return None };
    if !matches!(owner, [] | [Value::Nil | Value::BulkString(_)]) {
        return None;
    }
    let (limit, remaining) = (unsigned(limit)?, unsigned(remaining)?);
    let snapshot = Snapshot::new(limit, remaining, duration(reset)?, duration(next)?);
    match (truth(allowed)?, retry) {
        (true, Value::Int(-1)) => Some(Decision::Allow(snapshot)),
        (false, Value::Int(-2)) => Some(Decision::Deny { snapshot, retry: Retry::Never }),
        (false, wait) => Some(Decision::Deny { snapshot, retry: Retry::After(duration(wait)?) }),
        (true, _) => None,
    }
}

fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Int(0) | Value::Boolean(false) => Some(false),
        Value::Int(1) | Value::Boolean(true) => Some(true),
        _ => None,
    }
}

fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn duration(value: &Value) -> Option<Duration> {
    unsigned(value).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(allowed: i64, retry: i64) -> Value {
        let numbers = [allowed, 5, 4, retry, 7, 3].map(Value::Int);
        let policy = Value::BulkString(b"api".to_vec());
        Value::Array(std::iter::once(policy).chain(numbers).collect())
    }

    fn reply(allowed: i64, degraded: i64, charges: Vec<Value>) -> Value {
        Value::Array(vec![
            Value::Int(allowed),
            Value::Nil,
            Value::Int(degraded),
            Value::Array(charges),
        ])
    }

    fn read(reply: &Value, charges: usize) -> Option<Verdict> {
        let policy = Policy::parse("api", "5/1m").unwrap();
        verdict(reply, &vec![&policy; charges])
    }

    #[test]
    fn a_reply_reads_to_the_nanosecond() {
        let told = read(&reply(0, 1, vec![charge(1, -1), charge(0, 9)]), 2).unwrap();
        assert!(told.is_degraded() && told.denied_by() == Some(1));
        assert_eq!(told.retry(), Some(Retry::After(Duration::from_nanos(9))));
        let snapshot = told.decisions()[0].snapshot();
        assert_eq!((snapshot.limit(), snapshot.remaining()), (5, 4));
        let times = (snapshot.reset_after().as_nanos(), snapshot.next_after().as_nanos());
        assert_eq!(times, (7, 3));
        let never = read(&reply(0, 0, vec![charge(0, -2)]), 1).unwrap();
        assert_eq!(never.retry(), Some(Retry::Never));
    }

    #[test]
    fn what_contradicts_itself_is_no_verdict() {
        for strange in [
            reply(1, 0, vec![charge(0, 9)]),
            reply(0, 0, vec![charge(1, -1)]),
            reply(1, 0, vec![charge(1, 5)]),
            reply(0, 0, vec![charge(0, -3)]),
            reply(1, 0, Vec::new()),
            reply(1, 7, vec![charge(1, -1)]),
            Value::Nil,
            Value::Int(1),
        ] {
            assert_eq!(read(&strange, 1), None, "{strange:?}");
        }
    }
}
