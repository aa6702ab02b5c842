//! Which configuration `serve` and `validate` use when none is named, and what they say of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::serve::Folder;

const POLICY: &str = "[[policies]]\nname = \"a\"\nquota = \"1/1s\"\n";

/// A folder to start commands in, and one of settings.
struct Scene {
    folder: Folder,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        fs::create_dir_all(folder.0.join("here")).unwrap();
        fs::create_dir_all(folder.0.join("settings/tollway")).unwrap();
        Self { folder }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.file(name, text);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path
    }

    fn run(&self, arguments: &[&str], variable: Option<&str>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command
            .args(arguments)
            .current_dir(self.folder.0.join("here"))
            .env("XDG_CONFIG_HOME", self.folder.0.join("settings"))
            .env_remove("TOLLWAY_CONFIG")
            .stdin(Stdio::null());
        if let Some(files) = variable {
            command.env("TOLLWAY_CONFIG", files);
        }
        command.output().expect("the binary starts")
    }

    /// What `validate` says without a file, which must be good.
    fn validated(&self, variable: Option<&str>) -> String {
        let output = self.run(&["validate"], variable);
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
        told
    }

    /// The first line that `serve` prints; it then ends, because it is told to listen nowhere.
    fn first_line_of_serve(&self, more: &[&str]) -> String {
        let nowhere = ["serve", "--http", "off", "--grpc", "off", "--resp", "off"];
        let output = self.run(&[&nowhere, more].concat(), None);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        told.lines().next().unwrap_or_default().to_owned()
    }
}

#[test]
fn the_first_file_that_is_there_counts_and_is_named_in_the_first_line() {
    let scene = Scene::new("config-order");
    let nothing = scene.first_line_of_serve(&[]);
    assert!(nothing.starts_with("config  none found (no ./tollway.toml, "), "{nothing}");
    assert!(nothing.ends_with("/settings/tollway/tollway.toml, /etc/tollway/tollway.toml)"));
    let own = scene.write("settings/tollway/tollway.toml", POLICY);
    assert_eq!(
        scene.first_line_of_serve(&[]),
        format!("config  {own} (found; --config names another)")
    );
    scene.write("here/tollway.toml", POLICY);
    let here = "config  ./tollway.toml (found; --config names another)";
    assert_eq!(scene.first_line_of_serve(&[]), here);
    let told = scene.validated(None);
    assert_eq!(told, format!("{here}\n./tollway.toml: valid: 1 policy, 0 domains, 0 queues\n"));
    let other = scene.write("b.toml", &POLICY.replace("\"a\"", "\"b\""));
    let told = scene.validated(Some(&format!("{own}:{other}")));
    assert!(told.starts_with(&format!("config  {own}, {other} (from TOLLWAY_CONFIG)\n")), "{told}");
    assert!(told.ends_with("together: valid: 2 policies, 0 domains, 0 queues\n"), "{told}");
    assert_eq!(scene.first_line_of_serve(&["--config", &other]), format!("config  {other}"));
}

#[test]
fn a_file_that_somebody_else_may_have_written_is_not_used() {
    let scene = Scene::new("config-stranger");
    let path = scene.write("here/tollway.toml", POLICY);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    refused(&scene, "everybody may write ./tollway.toml: pass --config ./tollway.toml");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    if !give_away(Path::new(&path)) {
        println!("skipped: only root may give files away");
        return;
    }
    refused(&scene, "./tollway.toml belongs to another user (id 65534): pass --config");
    let output = scene.run(&["validate", "./tollway.toml"], None);
    assert!(output.status.success(), "named, it is used: {output:?}");
}

fn refused(scene: &Scene, why: &str) {
    for command in ["validate", "serve"] {
        let output = scene.run(&[command], None);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(why), "{told}");
    }
}

fn give_away(path: &Path) -> bool {
    let given = Command::new("chown").arg("65534").arg(path).stderr(Stdio::null()).status();
    given.is_ok_and(|status| status.success())
}

#[test]
fn nothing_to_validate_is_a_mistake() {
    let output = Scene::new("config-none").run(&["validate"], None);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("name a file"), "{told}");
}

#[test]
fn no_other_command_reads_a_file_of_the_current_folder() {
    let scene = Scene::new("config-others");
    scene.write("here/tollway.toml", "this is no configuration");
    for arguments in [&["check"][..], &["profile", "list"], &["simulate", "--length", "1m"]] {
        assert!(scene.run(arguments, None).status.success(), "{arguments:?}");
    }
}
