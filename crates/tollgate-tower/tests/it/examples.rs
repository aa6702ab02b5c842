//! Every example runs to its end, whose assertions say whether it did what its first line promises.

#[allow(dead_code, reason = "an example's `main` is called when it runs as a program")]
#[path = "../../examples/axum_limits.rs"]
mod axum_limits;
#[allow(dead_code, reason = "an example's `main` is called when it runs as a program")]
#[path = "../../examples/failed_logins.rs"]
mod failed_logins;
#[allow(dead_code, reason = "an example's `main` is called when it runs as a program")]
#[path = "../../examples/llm_tokens.rs"]
mod llm_tokens;
#[allow(dead_code, reason = "an example's `main` is called when it runs as a program")]
#[path = "../../examples/tonic.rs"]
mod tonic_calls;

#[tokio::test]
async fn axum_limits_does_what_it_says() {
    axum_limits::run().await.expect("it runs");
}

#[tokio::test]
async fn failed_logins_does_what_it_says() {
    failed_logins::run().await.expect("it runs");
}

#[tokio::test]
async fn llm_tokens_does_what_it_says() {
    llm_tokens::run().await.expect("it runs");
}

#[tokio::test]
async fn tonic_does_what_it_says() {
    tonic_calls::run().await.expect("it runs");
}
