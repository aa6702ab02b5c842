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
