//! Rules for the tree itself: documents name what exists, names mean one thing, files stay
//! readable.
//!
//! Every test lists all violations at once. An exception is an entry in a list here, with its
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::face::root;

/// Folders that hold nothing that is written here: builds, downloads, records of runs.
const SKIPPED: [&str; 6] = ["target", "node_modules", "dist", "runs", "__pycache__", "seeds"];

/// No longer than a newcomer reads in one sitting.
const ARCHITECTURE_LINES_MAX: usize = 250;

/// A file is one type or one idea; 400 lines are a sign to look again, 500 need a reason.
const FILE_LINES_MAX: usize = 500;

const COLUMNS_MAX: usize = 100;

/// As many lines as a reader takes in at once, and their width.
const PARAGRAPH_LINES_MAX: usize = 6;
const PARAGRAPH_COLUMNS_MAX: usize = 120;

/// Files that are longer, and why.
const LONG_FILES: [(&str, &str); 1] = [(
    "crates/tollway-core/src/algorithm.rs",
    "one place for what all algorithms do: a new one adds an arm here and a file of its own",
)];

/// Names of modules that say nothing to a stranger.
const RIDDLES: [&str; 26] = [
    "ahead", "amend", "brief", "common", "desk", "few", "flight", "greet", "helpers", "kept",
    "lane", "line", "link", "misc", "patient", "purse", "tape", "tend", "terms", "together",
    "turn", "types", "utils", "vault", "visit", "wish",
];

/// Types that had several meanings. Each may have one.
const ONE_MEANING: [&str; 14] = [
    "Answer", "Dialect", "Flight", "Kept", "Lane", "Line", "Link", "Part", "Place", "Plan", "Tape",
    "Terms", "Turn", "Wish",
];

/// Words of earlier designs, and phrases that are not English. Written in two halves, so that this
/// list is not a violation itself.
const WORDS: [(&str, &str); 5] = [
    ("seed", " 00"),
    ("the ", "gem"),
    ("right ", "would be"),
    ("does not ", "read"),
    ("toll", "gate"),
];

/// Tests that sleep, and why they may.
const SLEEPING_TESTS: [(&str, &str); 8] = [
    ("crates/tollway-cli/tests/it/proxy/spectacles.rs", "how long the script says to wait"),
    ("crates/tollway-queue/tests/it/ends.rs", "tokio's time is paused: nothing waits"),
    ("crates/tollway-queue/tests/it/waiting.rs", "tokio's time is paused: nothing waits"),
    ("crates/tollway-queue/tests/it/worker.rs", "tokio's time is paused: nothing waits"),
    ("crates/tollway-tower/tests/it/waiting.rs", "tokio's time is paused: nothing waits"),
    ("crates/tollway-upstream/tests/it/shared/stage.rs", "how long the scripted upstream takes"),
    ("crates/tollway-server/tests/it/redis_faults.rs", "looks again, within a bound"),
    ("crates/tollway-redis/tests/it/faults.rs", "looks again, within a bound, at a real server"),
];

/// Names in the documents that are not ours.
const FOREIGN_NAMES: [&str; 7] = ["Arc", "Box", "Duration", "Option", "Result", "String", "Vec"];

#[test]
fn the_architecture_names_only_what_exists() {
    let text = read("ARCHITECTURE.md");
    let tree = Tree::of(&root());
    let lines = text.lines().enumerate();
    let mut in_drawing = false;
    let mut wrong = Vec::new();
    for (number, line) in lines {
        in_drawing ^= line.starts_with("```");
        let spans: Vec<&str> = match in_drawing {
            // In a drawing only names of two or more words are told from plain ones for certain.
            true => drawn_names(line).filter(|word| is_camel_case(word)).collect(),
            false => line.split('`').skip(1).step_by(2).collect(),
        };
        let missing = spans.into_iter().flat_map(|span| tree.missing(span));
        wrong.extend(missing.map(|name| format!("ARCHITECTURE.md:{}: {name}", number + 1)));
    }
    assert_none("names that do not exist", &wrong);
}

#[test]
fn the_walks_name_functions_where_they_are() {
    let text = read("ARCHITECTURE.md");
    let (mut below, mut file, mut walked) = (String::new(), String::new(), 0);
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let spans: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        if line.starts_with('#') {
            // `### A request: `crates/…`` begins a walk; any other heading ends it.
            let folder = spans.last().filter(|span| span.starts_with("crates/"));
            below = folder.map_or(String::new(), |folder| (*folder).to_owned());
            continue;
        }
        for span in spans.iter().filter(|_| !below.is_empty()) {
            if span.ends_with(".rs") {
                let folder = if span.starts_with("tollway-") { "crates" } else { &below };
                file = read(&format!("{folder}/{span}"));
                continue;
            }
            let name = span.rsplit("::").next().unwrap_or_default();
            let is_function = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            walked += usize::from(is_function);
            if is_function && !file.contains(&format!("fn {name}")) {
                wrong.push(format!("ARCHITECTURE.md:{}: no function {name} there", number + 1));
            }
        }
    }
    assert!(walked > 60, "only {walked} functions are named");
    assert_none("functions that are elsewhere", &wrong);
}

#[test]
fn the_architecture_is_short() {
    let lines = read("ARCHITECTURE.md").lines().count();
    assert!(lines < ARCHITECTURE_LINES_MAX, "{lines} lines, at most {ARCHITECTURE_LINES_MAX}");
}

#[test]
fn files_are_readable() {
    let mut wrong = Vec::new();
    for (name, text) in rust_files() {
        let before_tests = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        let count = before_tests.lines().count();
        let is_known = LONG_FILES.iter().any(|(known, _)| *known == name);
        if count > FILE_LINES_MAX && !is_known && !is_test(&name) {
            wrong.push(format!("{name}: {count} lines, at most {FILE_LINES_MAX}"));
        }
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            // A row of a table and a text that is asserted or sent cannot be broken.
            let is_row = line.trim_start_matches([' ', '/', '!']).starts_with('|');
            let is_text =
                line.contains('"') || line.ends_with('\\') || is_within_text(&text, number);
            if columns > COLUMNS_MAX && !is_row && !is_text {
                wrong.push(format!("{name}:{}: {columns} columns", number + 1));
            }
        }
    }
    assert_none("files that are too long or too wide", &wrong);
}

#[test]
fn paragraphs_in_documents_are_short() {
    let mut wrong = Vec::new();
    let names = files(&["md"]).into_iter().map(|path| shown(&path));
    for name in names.filter(|name| name == "README.md" || name.starts_with("docs/")) {
        let (mut is_code, mut lines) = (false, 0);
        for (number, line) in read(&name).lines().enumerate() {
            let is_fence = line.starts_with("```");
            is_code ^= is_fence;
            if is_code || is_fence || line.trim().is_empty() || line.starts_with(['#', '|', '!']) {
                lines = 0;
                continue;
            }
            lines = if begins_item(line) { 1 } else { lines + 1 };
            if lines == PARAGRAPH_LINES_MAX + 1 {
                wrong.push(format!("{name}:{}: line {lines} of a paragraph", number + 1));
            }
            let columns = line.chars().count();
            if columns > PARAGRAPH_COLUMNS_MAX {
                wrong.push(format!("{name}:{}: {columns} columns", number + 1));
            }
        }
    }
    assert_none("paragraphs that are too long or too wide", &wrong);
}

/// Whether a line of a document begins an item of a list.
fn begins_item(line: &str) -> bool {
    let (mark, rest) = line.trim_start().split_once(' ').unwrap_or_default();
    let is_number = mark.ends_with('.') && mark.starts_with(|c: char| c.is_ascii_digit());
    (matches!(mark, "-" | "*") || is_number) && !rest.is_empty()
}

/// Whether a line is one of a text over several lines: no code, no comment.
fn is_within_text(text: &str, number: usize) -> bool {
    let before: String = text.lines().take(number).collect::<Vec<_>>().join("\n");
    let opened = before.rmatch_indices("r#\"").next().map(|(at, _)| at);
    let closed = before.rmatch_indices("\"#").next().map(|(at, _)| at);
    opened.is_some_and(|opened| closed.is_none_or(|closed| closed <= opened))
}

#[test]
fn modules_say_what_they_are() {
    let mut wrong = Vec::new();
    for path in files(&["rs", "lua"]) {
        let (name, stem) = (shown(&path), stem(&path));
        if !name.starts_with("crates/") || !name.contains("/src/") {
            continue;
        }
        let folder = path.parent().map(stem_of_folder).unwrap_or_default();
        for word in [stem, folder] {
            if RIDDLES.contains(&word.as_str()) {
                wrong.push(format!("{name}: {word:?} says nothing to a stranger"));
            }
        }
        let first = read(&name);
        let comment = if name.ends_with(".rs") { "//! " } else { "--" };
        if !first.starts_with(comment) && !is_test(&name) {
            wrong.push(format!("{name}: the first line does not say what it is for ({comment})"));
        }
    }
    assert_none("modules without a clear name or a first line", &wrong);
}

#[test]
fn a_name_has_one_meaning() {
    let mut declared: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            if let Some(known) = declaration(line).and_then(|word| known_word(&word)) {
                declared.entry(known).or_default().push(format!("{name}:{}", number + 1));
            }
        }
    }
    let several = declared.into_iter().filter(|(_, places)| places.len() > 1);
    let wrong: Vec<String> =
        several.map(|(word, places)| format!("{word}: {}", places.join(", "))).collect();
    assert_none("types that share a name", &wrong);
}

#[test]
fn words_of_earlier_designs_are_gone() {
    let mut wrong = Vec::new();
    for path in files(&["rs", "lua", "md", "toml", "ts", "mjs", "py", "json", "yaml", "sh"]) {
        let name = shown(&path);
        // A record says what was true on its day.
        if name == "CHANGELOG.md" {
            continue;
        }
        for (number, line) in read(&name).to_lowercase().lines().enumerate() {
            for (first, second) in WORDS {
                if line.contains(&format!("{first}{second}")) {
                    wrong.push(format!("{name}:{}: \"{first}{second}\"", number + 1));
                }
            }
        }
    }
    assert_none("words that should be gone", &wrong);
}

#[test]
fn tests_do_not_sleep() {
    let mut wrong = Vec::new();
    for (name, text) in rust_files() {
        let is_known = SLEEPING_TESTS.iter().any(|(known, _)| *known == name);
        if !is_test(&name) || name.contains("/examples/") || name.contains("/benches/") || is_known
        {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let calls = line.contains(concat!("::sle", "ep("));
            if calls && !line.trim_start().starts_with("//") {
                wrong.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none("tests that sleep", &wrong);
}

/// What can be named: files, folders, and what Rust code declares.
struct Tree {
    paths: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Tree {
    fn of(root: &Path) -> Self {
        let mut paths = BTreeSet::new();
        for path in files(&[]) {
            let inside = path.strip_prefix(root).expect("found in it");
            paths.extend(inside.ancestors().filter_map(Path::to_str).map(str::to_owned));
        }
        let mut names: BTreeSet<String> = FOREIGN_NAMES.map(str::to_owned).into();
        for (_, text) in rust_files() {
            names.extend(text.lines().filter_map(declaration));
        }
        Self { paths, names }
    }

    /// What of a span in backticks does not exist.
    fn missing(&self, span: &str) -> Vec<String> {
        let is_ending =
            |word: &str| [".rs", ".lua", ".md", ".toml"].iter().any(|e| word.ends_with(e));
        if !span.contains([' ', '<', '*', '…']) && (span.contains('/') || is_ending(span)) {
            let is_route = span.starts_with('/');
            let exists = is_route || self.has_path(span.trim_end_matches('/'));
            return if exists { Vec::new() } else { vec![span.to_owned()] };
        }
        let words = span.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':' | '-'));
        words.filter(|word| !self.has_name(word)).map(str::to_owned).collect()
    }

    /// Whether a path of the tree ends so.
    fn has_path(&self, path: &str) -> bool {
        let end = format!("/{path}");
        self.paths.iter().any(|known| known == path || known.ends_with(&end))
    }

    /// Whether a type, or the crate and the modules before it, exist. Other words are not judged.
    fn has_name(&self, word: &str) -> bool {
        let mut parts = word.split("::").filter(|part| !part.is_empty()).peekable();
        let qualified = word.contains("::");
        let Some(first) = parts.next() else { return true };
        let folder = if first.starts_with("tollway") {
            format!("crates/{}", first.replace('_', "-"))
        } else {
            format!("crates/tollway-{first}")
        };
        let inside = match qualified && self.paths.contains(&folder) {
            true => folder,
            false if first.starts_with("tollway-") => return self.paths.contains(&folder),
            false => String::new(),
        };
        let rest = parts.chain(inside.is_empty().then_some(first));
        // A variant stands behind its type: once a type is known, so is what follows.
        let mut known_type = false;
        for part in rest {
            let is_type = part.starts_with(char::is_uppercase) && part.contains(char::is_lowercase);
            known_type |= is_type && self.names.contains(part);
            let is_module = || {
                let ends = [format!("/{part}"), format!("/{part}.rs"), format!("/{part}.lua")];
                let mut paths = self.paths.iter().filter(|path| path.starts_with(&inside));
                paths.any(|path| ends.iter().any(|end| path.ends_with(end)))
            };
            let is_judged = is_type || (!inside.is_empty() && part.starts_with(char::is_lowercase));
            if is_judged && !known_type && !is_module() {
                return false;
            }
        }
        true
    }
}

/// The type that a line of Rust declares.
fn declaration(line: &str) -> Option<String> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub(") {
        Some(scoped) => scoped.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let words = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    // `type Future = …;` inside an implementation is the trait's word.
    name.starts_with(char::is_uppercase).then(|| name.to_owned())
}

fn known_word(word: &str) -> Option<&'static str> {
    ONE_MEANING.into_iter().find(|known| *known == word)
}

/// The words of a line of a drawing.
fn drawn_names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    words.map(|word| word.trim_matches(':'))
}

/// Whether a word is a path, or made of two or more capitalised ones as names of types often are.
fn is_camel_case(word: &str) -> bool {
    let is_plain = word.chars().all(|c| c.is_alphanumeric() || c == ':' || c == '_');
    let humps = word
        .as_bytes()
        .windows(2)
        .filter(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    is_plain && (humps.count() > 0 || word.contains("::"))
}

fn is_test(name: &str) -> bool {
    ["/tests/", "tests.rs", "/benches/", "/examples/", "fuzz/"]
        .iter()
        .any(|part| name.contains(part))
}

/// All Rust files by name, with their text; those of this list aside.
fn rust_files() -> impl Iterator<Item = (String, String)> {
    files(&["rs"]).into_iter().map(|path| {
        let name = shown(&path);
        let text = read(&name);
        (name, text)
    })
}

/// Files of the tree with one of these endings; all, if none is named.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of ours") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_ours = !name.starts_with('.') && !SKIPPED.contains(&name);
            if path.is_dir() && is_ours && !path.is_symlink() {
                folders.push(path);
            } else if path.is_file() {
                let ending = path.extension().and_then(|ending| ending.to_str());
                let is_wanted = endings.is_empty() || ending.is_some_and(|e| endings.contains(&e));
                found.extend(is_wanted.then_some(path));
            }
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).expect("a file of ours").to_str().expect("a name in UTF-8").to_owned()
}

fn stem(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned()
}

fn stem_of_folder(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn assert_none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{} {what}:\n{}", wrong.len(), wrong.join("\n"));
}
