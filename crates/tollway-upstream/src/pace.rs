//! Pacing: one token shared fairly with clients that cannot be seen, with almost no 429.
//!
//! A GCRA server's answer `remaining` is a clock that all its clients can read: `limit - remaining`
//! units are the time by which the server's bucket is booked ahead. A client that comes back
//!
//! ```text
//! next send = last send + (reserve - remaining) * period / limit
//! ```
//!
//! is given a *slot*, and consecutive accepted requests, whoever sent them, are given consecutive
//! slots exactly one unit of refill apart. The bucket is a ticket dispenser and the clients take
//! turns without talking to each other:
//!
//! ```text
//!  server accepts   A  B  C  A  B  C  A  B  C        one unit of refill apart
//!  ---------------+--+--+--+--+--+--+--+--+--+--> time
//!  A's slots      ^--------^--------^                 three clients: every third slot
//!  D joins                       ^ its first answer books the slot after C's
//! ```
//!
//! So there is nothing to converge: no learned rate, no jitter, no client count. A newcomer is
//! appended to the round, a leaver's slot is not taken and the round gets shorter. The price is
//! the reserve, about 64 units of a quota of 4,500 that stay unspent, one per client.
//!
//! [`Pacer`] is the state machine: pure, no clock, no runtime. One per process and token; tasks
//! wait their turn for it. [`Gate`] is the queue for async programs (features `tower`, `reqwest`).
//!
//! **When a server tells less**, the first of these laws that its answers allow is in force, and
//! [`Pacer::law`] says which one it is:
//!
//! | law | needs | does |
//! |---|---|---|
//! | [`Law::Window`] | quota, remaining, reset of a window | tickets against the budget line |
//! | [`Law::Ticket`] | quota, remaining | as above |
//! | [`Law::Spread`] | remaining, reset | spreads what is left over the time left |
//! | [`Law::Aimd`] | nothing | faster by addition, slower by multiplication on a 429 |
//! | [`Law::Probe`] | nothing | before the first answer: one request at a time |
//!
//! The quota comes from the policy field of an answer, else from [`Settings`] (by hand or from a
//! profile). A server whose 429s contradict its `remaining` is not believed for a while.
//!
//! **Invariants.** Whatever the server says and however the clock steps: after a 429 nothing is
//! sent before a pause, pauses have a bound ([`Settings::pause_max`]), and so has memory.
//!
//! Deliberately absent: retries (the caller decides), and a queue with priorities. Beside clients
//! that only react to 429s the ticket law would get almost nothing; see `compete` for its floor.

mod aimd;
mod compete;
mod feedback;
mod learn;
mod pacer;
mod parameters;
pub mod portable;
mod refill;
mod settings;

#[cfg(any(feature = "tower", feature = "reqwest"))]
mod gate;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(any(feature = "tower", feature = "reqwest"))]
mod response;
#[cfg(feature = "tower")]
pub mod tower;

pub use feedback::{Feedback, Outcome};
#[cfg(any(feature = "tower", feature = "reqwest"))]
pub use gate::{Gate, Pass};
pub use pacer::{Law, Pacer, Sent};
pub use settings::{Refill, Settings};
pub use tollway_core::dice::Dice;

#[cfg(test)]
mod tests;
