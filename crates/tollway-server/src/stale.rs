//! What of the configuration on disk is not in force, and why: for `/readyz`, the metrics and the
//! page.
//!
//! The log tells each of these once, when it happens; whoever looks later finds it here, until a
//! reload puts it right.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::metrics::Exposition;

/// The parts that can be out of date, each with the reason while it is.
#[derive(Debug, Default)]
pub(crate) struct Stale(Mutex<Reasons>);

#[derive(Clone, Debug, Default)]
struct Reasons {
    rules: Option<String>,
    certificates: Option<String>,
    restart: Vec<&'static str>,
}

impl Stale {
    /// The rules on disk are refused for this reason, or in force.
    pub(crate) fn set_rules(&self, reason: Option<String>) {
        self.reasons().rules = reason;
    }

    /// The certificates on disk are refused for this reason, or in force.
    pub(crate) fn set_certificates(&self, reason: Option<String>) {
        self.reasons().certificates = reason;
    }

    /// What the files say that only a restart puts in force.
    pub(crate) fn set_restart(&self, reasons: Vec<&'static str>) {
        self.reasons().restart = reasons;
    }

    /// Everything that is not in force, if there is anything.
    pub(crate) fn reason(&self) -> Option<String> {
        let Reasons { rules, certificates, restart } = self.reasons().clone();
        let certificates = certificates.map(|reason| format!("certificates: {reason}"));
        let restart = restart.into_iter().map(str::to_owned);
        let told: Vec<String> = rules.into_iter().chain(certificates).chain(restart).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Which parts are out of date.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let reasons = self.reasons().clone();
        let parts = [
            ("rules", reasons.rules.is_some()),
            ("certificates", reasons.certificates.is_some()),
            ("restart", !reasons.restart.is_empty()),
        ];
        let help = "Whether a part of the configuration on disk is not in force.";
        text.family("tollway_config_stale", "gauge", help);
        for (part, is_stale) in parts {
            text.sample(&[("part", part)], f64::from(u8::from(is_stale)));
        }
    }

    fn reasons(&self) -> MutexGuard<'_, Reasons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
