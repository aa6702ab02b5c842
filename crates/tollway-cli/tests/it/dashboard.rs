//! The dashboard in a real browser, and the files it is made of.

use crate::face::{command, root, succeed, tools};

const FOLDER: &str = "crates/tollway-server/dashboard";

#[test]
fn the_dashboard_works_in_a_browser() {
    let Some(tools) = tools("node_modules/playwright-core") else { return };
    let scripts =
        ["dashboard", "firedrill", "troubles", "clock", "queues", "store", "upstream", "proxy"];
    let scripts = scripts.map(|name| format!("{FOLDER}/e2e/{name}.test.mjs"));
    let told =
        succeed(command("node", &tools).args(["--test", "--test-reporter=tap"]).args(scripts));
    assert!(told.contains("# fail 0") && !told.contains("# pass 0"), "{told}");
}

/// What is committed is what the sources make: nobody needs Node to build Tollway, and nobody can
/// put into the binary what is not in the sources.
#[test]
fn the_committed_bundle_is_what_its_sources_make() {
    let Some(tools) = tools("node_modules/esbuild") else { return };
    let fresh = tools.join("rebuilt");
    succeed(command(root().join(FOLDER).join("build.sh"), &tools).arg(&fresh));
    for file in ["app.js", "app.css"] {
        let made = std::fs::read(fresh.join(file)).expect("a built file");
        let committed = std::fs::read(root().join(FOLDER).join("dist").join(file)).expect("dist");
        assert!(made == committed, "{file} is not what {FOLDER}/build.sh makes: run it");
    }
}
