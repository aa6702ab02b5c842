use std::time::Duration;

use tollway_core::Mode;
use tollway_testkit::conformance::{Ask, Failure, Figures, Operation, Outcome, Wait};

use super::{
    Answered, CAPABILITIES, Client, Fronted, Reservations, WITHOUT_NAMES, can_all_come_with_a_call,
    key_of, limit, reservation, settled,
};
use crate::harness::Running;

struct OverResp {
    connection: redis::Connection,
    /// Whether each charge brings its limit instead of naming a policy.
    brings_limits: bool,
}

impl OverResp {
    /// Adds the limit and the key.
    fn add(&self, ask: &Ask, command: &mut redis::Cmd) {
        if self.brings_limits {
            command.arg(limit(ask.policy()).to_string()).arg(key_of(ask.policy(), ask.key()));
        } else {
            command.arg(ask.policy().name()).arg(ask.key());
        }
    }

    fn send(&mut self, name: &str, asks: &[Ask]) -> Result<redis::Value, Failure> {
        let mut command = redis::cmd(name);
        for ask in asks {
            self.add(ask, &mut command);
            command.arg("COST").arg(ask.charge().cost.get());
            if ask.charge().mode == Mode::Count {
                command.arg("COUNT");
            }
        }
        Ok(command.query(&mut self.connection)?)
    }
}

type RespCharge = (String, bool, u64, u64, i64, u64);

fn resp_figures(charges: Vec<RespCharge>) -> Vec<Figures> {
    let figures = |(_, _, limit, remaining, retry_ms, reset_ms): RespCharge| Figures {
        limit: Some(limit),
        remaining: Some(remaining),
        retry: Some(match retry_ms {
            -1 => Wait::No,
            -2 => Wait::Never,
            millis => Wait::After(Duration::from_millis(millis as u64)),
        }),
        reset_after: Some(Duration::from_millis(reset_ms)),
        next_after: None,
    };
    charges.into_iter().map(figures).collect()
}

fn resp_verdict(value: redis::Value) -> Result<Outcome, Failure> {
    let (allowed, denied_by, _, charges): (bool, Option<String>, bool, Vec<RespCharge>) =
        redis::from_redis_value(value)?;
    let figures = resp_figures(charges);
    Ok(Outcome { allowed: Some(allowed), denied_by, figures, ..Outcome::default() })
}

impl Client for OverResp {
    fn ask(&mut self, operation: &Operation, reservations: &mut Reservations) -> Answered {
        Ok(match operation {
            Operation::Check(asks) => resp_verdict(self.send("TOLL.CHECK", asks)?)?,
            Operation::Peek(asks) => resp_verdict(self.send("TOLL.PEEK", asks)?)?,
            Operation::Take(ask) => {
                let value = self.send("TOLL.TAKE", std::slice::from_ref(ask))?;
                let (granted, charge): (u64, RespCharge) = redis::from_redis_value(value)?;
                let allowed = Some(charge.1);
                let denied_by = (!charge.1).then(|| charge.0.clone());
                let figures = resp_figures(vec![charge]);
                let granted = Some(granted);
                Outcome { allowed, denied_by, granted, figures, ..Outcome::default() }
            }
            Operation::Refund(ask) => {
                let value = self.send("TOLL.REFUND", std::slice::from_ref(ask))?;
                let (limit, remaining, reset_ms): (u64, u64, u64) = redis::from_redis_value(value)?;
                let figures = Figures {
                    limit: Some(limit),
                    remaining: Some(remaining),
                    reset_after: Some(Duration::from_millis(reset_ms)),
                    ..Figures::default()
                };
                Outcome { figures: vec![figures], ..Outcome::default() }
            }
            Operation::Reset(ask) => {
                let mut command = redis::cmd("TOLL.RESET");
                self.add(ask, &mut command);
                command.query::<()>(&mut self.connection)?;
                Outcome::default()
            }
            Operation::Reserve { label, asks } => {
                let value = self.send("TOLL.RESERVE", asks)?;
                let redis::Value::Array(mut fields) = value else { return Err("no array".into()) };
                let expires_ms: Option<u64> = redis::from_redis_value(fields.remove(5))?;
                let name: Option<String> = redis::from_redis_value(fields.remove(4))?;
                if let Some(name) = name {
                    reservations.insert(label.clone(), name);
                }
                let outcome = resp_verdict(redis::Value::Array(fields))?;
                Outcome { expires_after: expires_ms.map(Duration::from_millis), ..outcome }
            }
            Operation::Commit { label, costs } => {
                let mut command = redis::cmd("TOLL.COMMIT");
                command.arg(reservation(reservations, label));
                costs.iter().for_each(|cost| {
                    command.arg(*cost);
                });
                settled(command.query(&mut self.connection)?)
            }
            Operation::Cancel { label } => {
                let name = reservation(reservations, label);
                settled(redis::cmd("TOLL.CANCEL").arg(name).query(&mut self.connection)?)
            }
        })
    }
}

fn connect(running: &Running) -> OverResp {
    let client = redis::Client::open(format!("redis://{}", running.resp)).unwrap();
    OverResp { connection: client.get_connection().unwrap(), brings_limits: false }
}

#[test]
fn resp_answers_as_the_core_does() {
    Fronted::new(CAPABILITIES, |_| true, connect).play();
}

#[test]
fn limits_that_come_with_a_call_over_resp_answer_as_policies_do() {
    let connect = |running: &Running| OverResp { brings_limits: true, ..connect(running) };
    Fronted::new(WITHOUT_NAMES, can_all_come_with_a_call, connect).play();
}
