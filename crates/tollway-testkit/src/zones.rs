//! Time zones to try calendars in.

/// Zones whose clocks change by an hour, by half an hour, by two, by a day, downwards in summer, at
/// midnight, during Ramadan, and never; with offsets of whole hours and others.
pub const SAMPLE: [&str; 14] = [
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Pacific/Chatham",
];

/// A function of Python for oracles: the first moment at which the clocks of a zone show a local
/// time, in seconds; if they never do, that of the first minute after it that they show.
pub const MOMENT: &str = r"
from datetime import datetime, timedelta, timezone

MINUTE = timedelta(minutes=1)

def moment(local, zone):
    while True:
        utc = local.replace(tzinfo=zone, fold=0).astimezone(timezone.utc)
        if utc.astimezone(zone).replace(tzinfo=None) == local:
            return int(utc.timestamp())
        local += MINUTE
";
