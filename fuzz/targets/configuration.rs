//! Any file is taken or refused, and a refusal names the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollway_server::config::{Config, Overrides};
use tollway_server::Metrics;

fuzz_target!(|text: &str| {
    for name in ["rules.toml", "rules.yaml"] {
        let texts = [(name.to_owned(), text.to_owned())];
        if let Err(error) = Config::from_texts(&texts, &Overrides::default(), &Metrics::default()) {
            let shown = error.to_string();
            // Whether a token is missing is not one file's fault.
            let is_guarded = shown.contains("is open to others");
            assert!(shown.starts_with(name) || is_guarded, "{shown}");
            // To YAML a carriage return alone ends a line, too.
            let lines = text.split(['\r', '\n']).count() + 1;
            assert!(error.told().iter().all(|mistake| mistake.line <= lines), "{shown}");
        }
    }
});
