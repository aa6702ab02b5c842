use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::Mode;
use tollway_testkit::conformance::{Ask, Failure, Figures, Operation, Outcome, Wait};

use super::{Answered, CAPABILITIES, Client, Fronted, Reservations, reservation, settled};
use crate::harness::{Http, Running};

struct OverHttp(Http);

impl OverHttp {
    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.0.post(path, &body.to_string());
        let is_answer = matches!(answer.status, 200 | 429)
            || (answer.status == 404 && answer.body.contains("settled"));
        if is_answer { Ok(answer.json()) } else { Err(format!("{answer:?}").into()) }
    }
}

fn charges(asks: &[Ask]) -> Value {
    let charge = |ask: &Ask| {
        json!({
            "policy": ask.policy().name(),
            "key": String::from_utf8_lossy(ask.key()),
            "cost": ask.charge().cost.get(),
            "count": ask.charge().mode == Mode::Count,
        })
    };
    json!({"charges": asks.iter().map(charge).collect::<Vec<_>>()})
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
            Operation::Check(asks) => read_verdict(&self.post("/v1/check", &charges(asks))?),
            Operation::Peek(asks) => read_verdict(&self.post("/v1/peek", &charges(asks))?),
            Operation::Take(ask) => {
                let json = self.post("/v1/take", &charges(std::slice::from_ref(ask)))?;
                Outcome { granted: json["granted"].as_u64(), ..read_verdict(&json) }
            }
            Operation::Refund(ask) => {
                let json = self.post("/v1/refund", &charges(std::slice::from_ref(ask)))?;
                Outcome { allowed: None, ..read_verdict(&json) }
            }
            Operation::Reset(ask) => {
                self.post("/v1/reset", &charges(std::slice::from_ref(ask)))?;
                Outcome::default()
            }
            Operation::Reserve { label, asks } => {
                let json = self.post("/v1/reserve", &charges(asks))?;
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

#[test]
fn http_answers_as_the_core_does() {
    let connect = |running: &Running| OverHttp(Http::connect(running.http));
    Fronted::new(CAPABILITIES, |_| true, connect).play();
}
