//! Numbers of things in words: one policy, two policies.

/// `count` of what one calls `one` and several `several`.
pub(crate) fn counted(count: u64, one: &str, several: &str) -> String {
    let what = if count == 1 { one } else { several };
    format!("{count} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_any_other_number_is_plural() {
        let told = [0, 1, 2].map(|count| counted(count, "policy", "policies"));
        assert_eq!(told, ["0 policies", "1 policy", "2 policies"]);
    }
}
