//! Every example that needs no server runs to its end, where its assertions say whether it did what
//! its first line promises. The others are compiled with the tests.

#[path = "../../examples/axum_middleware.rs"]
mod axum_middleware;
#[path = "../../examples/in_process.rs"]
mod in_process;
#[path = "../../examples/job_queue.rs"]
mod job_queue;

#[test]
fn in_process_limits_a_key() {
    in_process::main().unwrap();
}

#[test]
fn axum_middleware_limits_a_client() {
    axum_middleware::main().unwrap();
}

#[test]
fn job_queue_runs_its_jobs() {
    job_queue::main().unwrap();
}
