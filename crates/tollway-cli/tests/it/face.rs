//! What `scripts/install-face` installs, and how it is run within a bound.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The folder with the tools, if `tool` is in it. With `TOLLWAY_TOOLS` it must be; without, a
/// test that lacks it says so and passes.
pub(crate) fn tools(tool: &str) -> Option<PathBuf> {
    let folder = root().join("target/face");
    if folder.join(tool).exists() {
        return Some(folder);
    }
    let missing = format!("{tool} is missing: run scripts/install-face");
    assert!(std::env::var_os("TOLLWAY_TOOLS").is_none(), "{missing}");
    println!("skipped: {missing}");
    None
}

/// Where `scripts/install-peers` puts real clients of the proxy; none if they are not installed,
/// which with `TOLLWAY_TOOLS` is a failure.
pub(crate) fn peers() -> Option<PathBuf> {
    let place = root().join("target/peers");
    if place.join("requirements.txt").exists() && place.join("installed.json").exists() {
        return Some(place);
    }
    let missing = "the peers are missing: run scripts/install-peers";
    assert!(std::env::var_os("TOLLWAY_TOOLS").is_none(), "{missing}");
    println!("skipped: {missing}");
    None
}

/// A command with everything that scripts of this project look for in the environment.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>, tools: &Path) -> Command {
    let mut path = vec![tools.join("node/bin"), tools.join("python/bin"), tools.to_path_buf()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new(program);
    command
        .current_dir(root())
        .env("PATH", std::env::join_paths(path).expect("paths without colons"))
        .env("PYTHONPATH", tools.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TOLLWAY_BIN", env!("CARGO_BIN_EXE_tollway"))
        .env("TOLLWAY_FACE", tools)
        .env("TOLLWAY_CHROMIUM", "/usr/bin/chromium-headless-shell")
        .env_remove("TOLLWAY_TOKEN")
        .stdin(Stdio::null());
    command
}

/// Runs to the end and must succeed; what it put out.
pub(crate) fn succeed(command: &mut Command) -> String {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // Read on threads: a child that fills a pipe nobody reads would wait for ever.
    let out = reader(child.stdout.take().expect("piped"));
    let err = reader(child.stderr.take().expect("piped"));
    let deadline = Instant::now() + BOUND;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    };
    let (out, err) = (out.join().expect("a reader"), err.join().expect("a reader"));
    assert!(status.success(), "{command:?} failed\n{out}\n{err}");
    out
}

fn reader(mut pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
