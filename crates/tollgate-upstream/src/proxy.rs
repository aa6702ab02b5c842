//! Budgets in front of an upstream: a streaming reverse proxy for clients in any language.
