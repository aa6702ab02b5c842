//! Three strangers share one token: pacing gives each its share, and nobody is refused.
//!
//! The upstream is a GCRA limit in this process, on a clock that the program moves.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::time::Duration;

use tollway_core::gcra::{Gcra, State};
use tollway_core::{Cost, Quota, Timestamp};
use tollway_upstream::pace::{Feedback, Outcome, Pacer, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quota = Quota::new(4_500, Duration::from_secs(3_600))?;
    let (upstream, mut state) = (Gcra::new(quota), State::default());
    let mut clients = [(); 3].map(|()| (Pacer::new(Settings::of(quota)), 0, 0));

    let mut now = Timestamp::from_millis(0);
    while now < Timestamp::from_millis(7_200_000) {
        for (pacer, accepted, refused) in &mut clients {
            if pacer.may_send_at(Cost::ONE, now) > now {
                continue;
            }
            let sent = pacer.on_send(Cost::ONE, now);
            let (decision, next) = upstream.decide(state, Cost::ONE, now);
            state = next;
            let is_allowed = decision.is_allowed();
            *(if is_allowed { accepted } else { refused }) += 1;
            let outcome = if is_allowed { Outcome::Accepted } else { Outcome::Limited };
            let remaining = decision.snapshot().remaining() as f64;
            pacer.on_response(sent, &Feedback::bare(outcome).with_remaining(remaining), now);
        }
        now = now.after(Duration::from_millis(50));
    }
    for (number, (pacer, accepted, refused)) in clients.iter().enumerate() {
        println!("client {number}: {accepted} accepted, {refused} refused, {:?}", pacer.law());
    }
    Ok(())
}
