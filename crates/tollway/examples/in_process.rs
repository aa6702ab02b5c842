//! Limits requests inside one process: synchronous, bounded in memory, no runtime.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use tollway::{Decision, Limiter, PolicyError, Retry};

pub(crate) fn main() -> Result<(), PolicyError> {
    // Five at once, then one more every twelve seconds.
    let limiter = Limiter::new("5/1m")?;
    let mut allowed = 0;
    for request in 1..=6 {
        match limiter.check("alice") {
            Decision::Allow(left) => {
                allowed += 1;
                println!("request {request}: allowed, {} left", left.remaining());
            }
            Decision::Deny { retry: Retry::After(wait), .. } => {
                println!("request {request}: denied, retry after {wait:?}");
            }
            Decision::Deny { retry: Retry::Never, .. } => println!("more than the limit holds"),
        }
    }
    assert_eq!(allowed, 5);
    assert!(limiter.check("bob").is_allowed(), "every key has a limit of its own");
    Ok(())
}
