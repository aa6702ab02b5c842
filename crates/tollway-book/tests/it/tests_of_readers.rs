//! `docs/how-to/testing.md`: its blocks are tests, and run here as they stand.

mod limit_test {
    include!(concat!(env!("OUT_DIR"), "/limit_test.rs"));
}

mod queue_test {
    include!(concat!(env!("OUT_DIR"), "/queue_test.rs"));
}

mod sharing_test {
    include!(concat!(env!("OUT_DIR"), "/sharing_test.rs"));
}
