//! What a request takes from each limit, as the names of permits carry it.
//!
//! `:<units of the counter>,<dimension>=<units>,...`; nothing where it is one of the counter alone.
//! The counter is that of the first dimension that counts a bucket; what no answer tells of is not
//! counted by the store's meters.

use std::fmt::Write as _;

use crate::budget::Claim;
use crate::profile::{Dimension, Profile, Reach};

/// The dimension whose counter is the one of Spectacles.
pub(super) fn main_dimension(profile: &Profile) -> usize {
    let is_main = |of: &Dimension| of.reach == Reach::Bucket && !of.is_modelled();
    profile.dimensions().iter().position(is_main).unwrap_or(0)
}

/// What a claim takes, as the end of a permit's name.
pub(super) fn of_claim(claim: &Claim, profile: &Profile) -> String {
    let main = main_dimension(profile);
    let is_exempt = claim.route.is_exempt_from_global();
    let mut text = String::new();
    for (index, of) in profile.dimensions().iter().enumerate() {
        let units = claim.costs.get(index).copied().unwrap_or(0);
        let counts = !(of.is_modelled() || is_exempt && of.reach == Reach::Credential);
        if index != main && units > 0 && counts {
            let _ = write!(text, ",{index}={units}");
        }
    }
    match claim.costs.get(main).copied().unwrap_or(1) {
        1 if text.is_empty() => text,
        units => format!(":{units}{text}"),
    }
}

/// What a permit takes.
pub(super) fn of_permit(permit: &str) -> &str {
    permit.find(':').map_or("", |at| &permit[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(profile: &str, method: &str, target: &str, costs: &[(usize, u32)]) -> String {
        let profile = Profile::builtin(profile).unwrap();
        let claim = Claim::new(profile.route(method, target));
        let claim = costs.iter().fold(claim, |claim, (index, units)| claim.cost(*index, *units));
        of_claim(&claim, &profile)
    }

    #[test]
    fn one_request_to_a_single_limit_is_not_written_down() {
        assert_eq!(of("discord", "GET", "/api/v10/channels/1", &[]), "");
        assert_eq!(of("github", "POST", "/repos/a/b/issues", &[]), "", "no answer tells of points");
    }

    #[test]
    fn further_dimensions_are_listed_behind_the_counter() {
        assert_eq!(of("openai", "POST", "/v1/chat/completions", &[(1, 250)]), ":1,1=250,2=1");
        assert_eq!(of("riot", "GET", "/lol/status/v4/platform-data", &[]), ":1,0=1");
        assert_eq!(of_permit("0123.17:1,1=250"), ":1,1=250");
        assert_eq!(of_permit("0123.17"), "");
    }
}
