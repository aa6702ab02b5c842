//! The clients in `clients/`, each by its own ecosystem's test runner, against this binary.

use crate::face::{command, root, succeed, tools};

#[test]
fn the_client_for_python_works() {
    let Some(tools) = tools("python/mypy") else { return };
    let mut python = command("python3", &tools);
    python.env("PYTHONPATH", "clients/python/src");
    succeed(python.args(["-m", "unittest", "discover", "clients/python/tests"]));
}

#[test]
fn the_client_for_python_is_typed() {
    let Some(tools) = tools("python/mypy") else { return };
    let mut mypy = command("python3", &tools);
    mypy.args(["-m", "mypy", "--config-file", "clients/python/pyproject.toml", "--cache-dir"]);
    succeed(mypy.arg(tools.join("mypy")).arg("clients/python/src"));
}

#[test]
fn the_client_for_typescript_works() {
    let Some(tools) = tools("node_modules/typescript") else { return };
    let built = tools.join("client-ts");
    let mut compiler = command("node", &tools);
    compiler.arg(tools.join("node_modules/typescript/bin/tsc"));
    succeed(compiler.args(["--project", "clients/typescript", "--outDir"]).arg(&built));
    let package = root().join("clients/typescript/package.json");
    std::fs::copy(package, built.join("package.json")).expect("a copy");
    let mut tests = command("node", &tools);
    tests.env("TOLLWAY_TS_BUILT", &built).args(["--test", "--test-reporter=tap"]);
    let files = ["client", "queue"].map(|name| format!("clients/typescript/test/{name}.test.mjs"));
    let told = succeed(tests.args(files));
    assert!(told.contains("# fail 0") && !told.contains("# pass 0"), "{told}");
}
