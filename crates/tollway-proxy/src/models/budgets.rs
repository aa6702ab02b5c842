//! The budgets of models: who may call now, and what a refusal says.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollway_core::{Retry, StoreLimiter, Verdict};

use crate::credential::CredentialId;
use crate::models::call::{Call, Form};
use crate::models::estimate::Estimates;
use crate::models::hold::{Hold, LATE_MAX, Payer};
use crate::models::rules::{Asking, Counts, ModelRules};
use crate::models::spending::{Outcome, Spending};
use crate::models::usage::Usage;

/// The budgets of models, in a store that proxies may share.
pub struct ModelBudgets {
    pub(crate) rules: ModelRules,
    pub(crate) limiter: StoreLimiter,
    estimates: Mutex<Estimates>,
    spending: Mutex<Spending>,
    hasher: RandomState,
    /// Places for settlements that wait for the store.
    pub(crate) late: Semaphore,
}

/// Why a call is not made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// The budget without room; none if the store does not answer or nobody pays.
    pub(crate) budget: Option<String>,
    /// After which the same call is allowed if nobody else asks; none if no wait helps.
    pub(crate) wait: Option<Duration>,
    /// What callers are told.
    pub(crate) message: String,
    /// Whether it is about calls; otherwise about tokens.
    pub(crate) counts_requests: bool,
    /// How long the budget lets calls wait.
    patience: Duration,
    /// The status that says so.
    pub(crate) status: u16,
}

impl ModelBudgets {
    /// Budgets by these rules. The limiter has the policies of [`ModelRules::policies`].
    #[must_use]
    pub fn new(rules: ModelRules, limiter: StoreLimiter) -> Self {
        Self {
            rules,
            limiter,
            estimates: Mutex::default(),
            spending: Mutex::default(),
            hasher: RandomState::new(),
            late: Semaphore::new(LATE_MAX),
        }
    }

    pub(crate) const fn body_bytes_max(&self) -> u64 {
        self.rules.body_bytes_max as u64
    }

    /// Reserves what a call is expected to use; waits for it where the budget says so.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        call: Call,
        headers: &HeaderMap,
        credential: CredentialId,
        deadline: Instant,
    ) -> Result<Option<Hold>, Denial> {
        let keys = &self.rules.keys;
        let asking = Asking { headers, credential, keys, model: &call.model };
        let payers = self.payers(&asking)?;
        if payers.is_empty() {
            return Ok(None);
        }
        let id = self.hasher.hash_one((credential, &call.model));
        let expected = lock(&self.estimates).expect(id, call.input);
        let cap = call.cap.unwrap_or(u64::MAX);
        // A stream of unknown length is extended as it goes; another answer comes as it is.
        let unknown = match call.is_stream {
            true => 1,
            false => call.cap.unwrap_or(self.rules.unknown_output),
        };
        let output = match call.form {
            Form::Embedding => 0,
            _ => expected.output.unwrap_or(unknown).clamp(1, cap),
        };
        let mut usage = Usage { input: expected.input, cached: 0, output };
        if expected.output.is_none() && call.cap.is_none() {
            self.fit(&payers, &call.model, &mut usage);
        }
        let mut hold = Hold::new(Arc::clone(self), call, id, expected, payers);
        let started = Instant::now();
        loop {
            let Err(denial) = hold.reserve(usage).await else { return Ok(Some(hold)) };
            let until = deadline.min(started + denial.patience);
            let again = denial.wait.map(|wait| Instant::now() + wait);
            let Some(again) = again.filter(|again| *again <= until) else {
                self.denied(&denial, &hold);
                return Err(denial);
            };
            tokio::time::sleep_until(again).await;
        }
    }

    /// Makes a guess no larger than what the budgets can ever hold: a guess refuses nobody for
    /// good.
    fn fit(&self, payers: &[Payer], model: &str, usage: &mut Usage) {
        let fits = |usage: Usage| {
            payers.iter().all(|payer| {
                let limit = self.rules.rules[payer.rule].policy.algorithm().limit();
                self.cost(payer.rule, usage, model) <= limit
            })
        };
        while usage.output > 1 && !fits(*usage) {
            usage.output /= 2;
        }
    }

    /// The budgets of a call. Who says not who pays is refused: else it would be free.
    fn payers(&self, asking: &Asking<'_>) -> Result<Vec<Payer>, Denial> {
        let mut payers = Vec::new();
        for (index, rule) in self.rules.rules.iter().enumerate() {
            if !rule.is_for(asking.model) {
                continue;
            }
            let mut key = String::new();
            for owner in &rule.owner {
                let Some(name) = owner.of(asking) else {
                    return Err(Denial::nobody(rule.policy.name(), owner));
                };
                // Lengths in front: no two owners make the same key.
                key.push_str(&format!("{}:{name}", name.len()));
            }
            payers.push(Payer::new(index, key));
        }
        Ok(payers)
    }

    pub(crate) fn cost(&self, rule: usize, usage: Usage, model: &str) -> u64 {
        self.rules.rules[rule].cost(usage, &self.rules.prices, model)
    }

    pub(crate) fn learn(&self, id: u64, estimate: u64, input: u64, output: u64) {
        lock(&self.estimates).learn(id, estimate, input, output);
    }

    pub(crate) fn spent(
        &self,
        payers: &[Payer],
        model: &str,
        usage: Usage,
        outcome: Outcome,
        is_enough: Option<bool>,
    ) {
        let money = self.rules.prices.of(model).map_or(0, |price| price.of(usage));
        let mut spending = lock(&self.spending);
        spending.ended(outcome, usage, is_enough);
        for payer in payers {
            spending.spend((payer.rule, &payer.key, model), usage, money);
        }
    }

    fn denied(&self, denial: &Denial, hold: &Hold) {
        let mut spending = lock(&self.spending);
        spending.ended(Outcome::Denied, Usage::default(), None);
        for payer in hold.payers() {
            if denial.budget.as_deref() == Some(self.rules.rules[payer.rule].policy.name()) {
                spending.deny((payer.rule, &payer.key, &hold.call.model));
            }
        }
    }

    /// What the page and the metrics show.
    pub(crate) fn spending(&self) -> MutexGuard<'_, Spending> {
        lock(&self.spending)
    }

    pub(crate) fn name(&self, rule: usize) -> String {
        self.rules.rules[rule].policy.name().to_owned()
    }
}

impl Denial {
    /// What a denied reservation says.
    pub(crate) fn of(budgets: &ModelBudgets, rule: usize, verdict: &Verdict) -> Self {
        let rule = &budgets.rules.rules[rule];
        let name = rule.policy.name();
        let wait = match verdict.retry() {
            Some(Retry::After(wait)) => Some(wait),
            _ => None,
        };
        let what = match rule.counts {
            Counts::Requests => "requests",
            Counts::Money => "money",
            _ => "tokens",
        };
        let message = match wait {
            Some(wait) => format!(
                "the budget {name:?} has not enough {what} left; try again in {:.1} s",
                wait.as_secs_f64()
            ),
            None => format!("the call may need more {what} than the budget {name:?} ever has"),
        };
        Self {
            budget: Some(name.to_owned()),
            wait,
            message,
            counts_requests: rule.counts == Counts::Requests,
            patience: rule.wait,
            status: 429,
        }
    }

    /// The store does not answer.
    pub(crate) fn store() -> Self {
        Self {
            budget: None,
            wait: Some(Duration::from_secs(1)),
            message: "the store of the budgets does not answer".to_owned(),
            counts_requests: true,
            patience: Duration::ZERO,
            status: 503,
        }
    }

    fn nobody(budget: &str, owner: &super::rules::Owner) -> Self {
        Self {
            budget: Some(budget.to_owned()),
            wait: None,
            message: format!("nobody pays: the budget {budget:?} needs {owner}"),
            counts_requests: true,
            patience: Duration::ZERO,
            status: 403,
        }
    }
}

impl Denial {
    /// The body that the API's libraries read.
    pub(crate) fn body(&self, form: Form) -> Value {
        let is_limit = self.status == 429;
        if form.is_message() {
            let kind = match self.status {
                429 => "rate_limit_error",
                403 => "permission_error",
                _ => "overloaded_error",
            };
            return json!({"type": "error", "error": {"type": kind, "message": self.message}});
        }
        let kind = match self.status {
            429 if self.counts_requests => "requests",
            429 => "tokens",
            403 => "invalid_request_error",
            _ => "server_error",
        };
        let code = is_limit.then_some("rate_limit_exceeded");
        json!({"error": {"message": self.message, "type": kind, "param": null, "code": code}})
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
