//! Reloading: the rules on disk put in force, or refused as a whole.
use crate::service::Service;
/// Reloads.
pub(crate) async fn reload(_service: &Service) -> Result<(), String> {
    Err("nothing to reload".into())
}
