//! Budgets around an HTTP client: a tower layer and a reqwest middleware.
