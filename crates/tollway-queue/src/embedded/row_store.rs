//! Where payloads and results are, which the schedule does not hold.

use bytes::Bytes;

use crate::error::Error;
use crate::schedule::Schedule;

/// Where payloads and results are.
pub(super) trait RowStore {
    /// Stores what the schedule says has changed.
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error>;

    /// The payload of a job that is not done.
    fn payload(&mut self, queue: u32, id: u64) -> Result<Bytes, Error>;

    /// The result of a job that is done.
    fn result(&mut self, queue: u32, id: u64) -> Result<Option<Bytes>, Error>;
}
