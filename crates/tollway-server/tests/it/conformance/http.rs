use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::Mode;
use tollway_testkit::conformance::{Ask, Failure, Figures, Operation, Outcome, Wait};

use super::{
    Answered, CAPABILITIES, Client, Fronted, Reservations, WITHOUT_NAMES, can_all_come_with_a_call,
    key_of, limit, reservation, settled,
};
use crate::harness::{Http, Running};

struct OverHttp {
    http: Http,
    /// Whether each charge brings its limit instead of naming a policy.
    brings_limits: bool,
}

impl OverHttp {
    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.http.post(path, &body.to_string());
        let is_answer = matches!(answer.status, 200 | 429)
            || (answer.status == 404 && answer.body.contains("settled"));
        if is_answer { Ok(answer.json()) } else { Err(format!("{answer:?}").into()) }
    }

    fn charges(&self, asks: &[Ask]) -> Value {
        let charge = |ask: &Ask| {
            let mut charge = json!({
                "cost": ask.charge().cost.get(),
                "count": ask.charge().mode == Mode::Count,
            });
            if self.brings_limits {
                charge["limit"] = limit(ask.policy());
                charge["key"] = key_of(ask.policy(), ask.key()).into();
            } else {
                charge["policy"] = ask.policy().name().into();
                charge["key"] = String::from_utf8_lossy(ask.key()).into();
            }
            charge
        };
        json!({"charges": asks.iter().map(charge).collect::<Vec<_>>()})
    }
}

fn read_verdict(json: &Value) -> Outcome {
    let figures = |charge: &Value| Figures {
        limit: charge["limit"].as_u64(),
        remaining: charge["remaining"].as_u64(),
        retry: Some(match (&charge["retry_after_ms"], charge["retry"].as_str()) {
            (_, Some("never")) => Wait::Never,
            (Value::Number(millis), _) => {
                Wait::After(Duration::from_millis(millis.as_u64().unwrap()))
            }
            _ => Wait::No,
        }),
        reset_after: charge["reset_after_ms"].as_u64().map(Duration::from_millis),
        next_after: None,
    };
    Outcome {
        allowed: json["allowed"].as_bool(),
        denied_by: json["denied_by"].as_str().map(str::to_owned),
        figures: json["charges"].as_array().unwrap().iter().map(figures).collect(),
        expires_after: json["expires_after_ms"].as_u64().map(Duration::from_millis),
        ..Outcome::default()
    }
}

impl Client for OverHttp {
    fn ask(&mut self, operation: &Operation, reservations: &mut Reservations) -> Answered {
        Ok(match operation {
            Operation::Check(asks) => read_verdict(&self.post("/v1/check", &self.charges(asks))?),
            Operation::Peek(asks) => read_verdict(&self.post("/v1/peek", &self.charges(asks))?),
            Operation::Take(ask) => {
                let json = self.post("/v1/take", &self.charges(std::slice::from_ref(ask)))?;
                Outcome { granted: json["granted"].as_u64(), ..read_verdict(&json) }
            }
            Operation::Refund(ask) => {
                let json = self.post("/v1/refund", &self.charges(std::slice::from_ref(ask)))?;
                Outcome { allowed: None, ..read_verdict(&json) }
            }
            Operation::Reset(ask) => {
                self.post("/v1/reset", &self.charges(std::slice::from_ref(ask)))?;
                Outcome::default()
            }
            Operation::Reserve { label, asks } => {
                let json = self.post("/v1/reserve", &self.charges(asks))?;
                if let Some(name) = json["reservation"].as_str() {
                    reservations.insert(label.clone(), name.to_owned());
                }
                read_verdict(&json)
            }
            Operation::Commit { label, costs } => {
                let name = reservation(reservations, label);
                let json =
                    self.post("/v1/commit", &json!({"reservation": name, "costs": costs}))?;
                settled(json["settled"] == true)
            }
            Operation::Cancel { label } => {
                let name = reservation(reservations, label);
                settled(self.post("/v1/cancel", &json!({"reservation": name}))?["settled"] == true)
            }
        })
    }
}

fn connect(running: &Running) -> OverHttp {
    OverHttp { http: Http::connect(running.http), brings_limits: false }
}

#[test]
fn http_answers_as_the_core_does() {
    Fronted::new(CAPABILITIES, |_| true, connect).play();
}

#[test]
fn limits_that_come_with_a_call_over_http_answer_as_policies_do() {
    let connect = |running: &Running| OverHttp { brings_limits: true, ..connect(running) };
    Fronted::new(WITHOUT_NAMES, can_all_come_with_a_call, connect).play();
}
