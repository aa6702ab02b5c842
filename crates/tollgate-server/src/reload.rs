//! Reloading: the rules on disk put in force as a whole, or refused as a whole.
//!
//! Rules are reloaded: policies, descriptors, lists, shadow mode. Where to listen, limits on
//! connections, tokens and certificates belong to the process and need a restart. States live in
//! the store under their policy's identity, so a policy that is the same after a reload goes on
//! where it was.

use std::path::Path;
use std::time::SystemTime;

use tracing::{error, info};

use crate::config::Config;
use crate::logs::note;
use crate::service::Service;

/// Reads the files again. On an error the rules in force stay, and the error is remembered.
///
/// # Errors
///
/// If the files are wrong; the text says where and what would be right.
pub fn reload(service: &Service) -> Result<(), String> {
    let origin = service.origin();
    if origin.files.is_empty() {
        return Err("the service was started without a file: there is nothing to reload".to_owned());
    }
    match Config::load(&origin.files, &origin.overrides, service.metrics()) {
        Ok(config) => {
            let policies = config.rules.rules().len();
            note(&config.notes);
            service.replace_rules(config.rules);
            info!(policies, "rules reloaded");
            Ok(())
        }
        Err(wrong) => {
            error!(%wrong, "reload refused, the old rules stay in force");
            service.refuse_reload(wrong.to_string());
            Err(wrong.to_string())
        }
    }
}

/// What files looked like when last seen; changes when one of them does.
///
/// Looked at through links: Kubernetes replaces a file by turning a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting(Vec<Option<(SystemTime, u64)>>);

impl Sighting {
    /// Looks at the files.
    pub fn of<P: AsRef<Path>>(files: &[P]) -> Self {
        let look = |file: &P| {
            let metadata = std::fs::metadata(file).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        Self(files.iter().map(look).collect())
    }
}
