//! What a server keeps when its power goes: whether it writes what it does to a file, and how often
//! that is synced.

use redis::Cmd;
use tollway_core::named_enum;

use crate::connection::Client;

named_enum! {
    /// What is lost when a server loses its power, the weakest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Persistence {
        /// All since the last snapshot, if there are any: `appendonly no`.
        Snapshots = "appendonly no",
        /// What the operating system has not written yet, half a minute or so: `appendfsync no`.
        Unsynced = "appendfsync no",
        /// A second, or two when the disk is busy: `appendfsync everysec`.
        EverySecond = "appendfsync everysec",
        /// Nothing that was acknowledged: `appendfsync always`.
        Always = "appendfsync always",
    }
}

/// What a server says; `None` if it does not: managed servers forbid the question.
pub(crate) async fn persistence(client: &Client) -> Option<Persistence> {
    let mut ask = Cmd::new();
    ask.arg("CONFIG").arg("GET").arg("append[of]*");
    let answer = client.send(&ask).await.ok()?;
    of_settings(&redis::from_redis_value::<Vec<(String, String)>>(answer).ok()?)
}

fn of_settings(settings: &[(String, String)]) -> Option<Persistence> {
    let setting = |name: &str| settings.iter().find(|(known, _)| known == name).map(|(_, it)| it);
    if setting("appendonly")? == "no" {
        return Some(Persistence::Snapshots);
    }
    Some(match setting("appendfsync")?.as_str() {
        "always" => Persistence::Always,
        "everysec" => Persistence::EverySecond,
        _ => Persistence::Unsynced,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_keeps_is_read_of_two_settings() {
        let of = |only: &str, sync: &str| {
            let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            of_settings(&[pair("appendfsync", sync), pair("appendonly", only)])
        };
        assert_eq!(of("no", "always"), Some(Persistence::Snapshots));
        assert_eq!(of("yes", "no"), Some(Persistence::Unsynced));
        assert_eq!(of("yes", "everysec"), Some(Persistence::EverySecond));
        assert_eq!(of("yes", "always"), Some(Persistence::Always));
        assert_eq!(of_settings(&[]), None);
    }
}
