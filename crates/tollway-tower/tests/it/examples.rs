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
#[path = "../../examples/plans.rs"]
mod plans;
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
async fn plans_does_what_it_says() {
    plans::run().await.expect("it runs");
}

#[tokio::test]
async fn tonic_does_what_it_says() {
    tonic_calls::run().await.expect("it runs");
}

/// It starts copies of itself, so it must run as a program. `cargo test` builds it; where only this
/// test binary was built there is nothing to run, which is said.
#[test]
fn redis_two_processes_does_what_it_says() {
    let tests = std::env::current_exe().expect("a path");
    let program = tests.ancestors().nth(2).expect("a folder").join("examples/redis_two_processes");
    if !program.exists() {
        println!("skipped: {} is not built", program.display());
        return;
    }
    let output = std::process::Command::new(program).output().expect("it starts");
    assert!(output.status.success(), "{output:?}; is redis-server installed?");
}
