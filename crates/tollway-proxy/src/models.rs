//! Budgets of language models: requests, tokens and money by owner and model, kept while an answer
//! is being streamed.
//!
//! ```text
//!  body ─► call (model, cap, input) ─► budgets ─► payers (by rules) ─► hold: reserve
//!  answer ─► events (tokens, usage) ─► hold: cover, or end ─► settle ─► estimate, spending
//! ```
//!
//! **Invariant.** No event of a stream is delivered before its tokens are reserved, unless the
//! budget allows debt. What was delivered is paid whoever hangs up.

mod answer;
mod budgets;
mod call;
mod estimate;
mod events;
mod hold;
mod price;
mod rules;
mod spending;
mod usage;

pub use budgets::ModelBudgets;
pub use rules::{ModelRules, ModelRulesError};

pub(crate) use answer::metered;
pub(crate) use budgets::Denial;
pub(crate) use call::{Call, Form};
pub(crate) use hold::Hold;
