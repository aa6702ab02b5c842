//! Shared store on Redis and Valkey: one round trip, cluster-safe, honest under failure.

mod address;
mod amount;
mod batch;
mod bytes;
mod denial;
mod dial;
mod failure;
mod flight;
mod job;
mod layout;
mod lease;
mod link;
mod local;
mod names;
mod outage;
mod remembered;
mod replay;
mod request;
mod router;
mod script;
mod settings;
mod share;
mod split;
mod status;
mod store;
mod terms;

pub use settings::{Certificates, Denials, LeaseTerms, PolicySettings, Settings};
pub use status::Status;
pub use store::RedisStore;
