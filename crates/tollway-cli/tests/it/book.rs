//! The documents: every command and snippet is run, every link leads somewhere, every picture is
//! what the code draws.

use std::fs;
use std::path::{Path, PathBuf};

use crate::face::{command, peers, root, succeed, tools};

/// Documents whose blocks are run by `scripts/run-book`; those in Rust by `tollway-book`.
const BOOK: [&str; 33] = [
    "README.md",
    "docs/getting-started.md",
    "docs/how-to/in-process.md",
    "docs/how-to/fleet.md",
    "docs/how-to/service.md",
    "docs/how-to/shares.md",
    "docs/how-to/obey.md",
    "docs/how-to/llm.md",
    "docs/how-to/queue.md",
    "docs/how-to/workers.md",
    "docs/how-to/guild-roles.md",
    "docs/how-to/calendar-windows.md",
    "docs/how-to/gateways.md",
    "docs/how-to/envoy-gateway.md",
    "docs/how-to/envoy.md",
    "docs/how-to/envoy-quota.md",
    "docs/how-to/own-quotas.md",
    "docs/how-to/plans.md",
    "docs/how-to/testing.md",
    "docs/how-to/web-frameworks.md",
    "docs/choosing.md",
    "docs/five-systems.md",
    "docs/migrating.md",
    "docs/operating.md",
    "docs/scaling.md",
    "docs/service.md",
    "docs/troubleshooting.md",
    "docs/proxy.md",
    "docs/upstream.md",
    "docs/pacing.md",
    "docs/queue-service.md",
    "clients/python/README.md",
    "clients/typescript/README.md",
];

#[test]
fn every_command_in_the_book_works() {
    let Some(tools) = tools("node_modules/typescript").filter(|_| peers().is_some()) else {
        return;
    };
    let mut compiler = command("node", &tools);
    compiler.arg(tools.join("node_modules/typescript/bin/tsc"));
    compiler.args(["--project", "clients/typescript", "--outDir"]);
    let built = tools.join("client-book");
    succeed(compiler.arg(&built));
    let mut run = command(root().join("scripts/run-book"), &tools);
    let told = succeed(run.env("TOLLWAY_TS_BUILT", &built).args(BOOK));
    let passed = told.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(passed, BOOK.len(), "{told}");
}

/// Whoever writes TypeScript copies these into files that a strict compiler reads.
#[test]
fn programs_in_typescript_are_typed() {
    let Some(tools) = tools("node_modules/typescript") else { return };
    let folder = tools.join("client-typed");
    let package = folder.join("node_modules/tollway-client");
    fs::create_dir_all(&package).expect("a folder");
    let source = root().join("clients/typescript");
    fs::copy(source.join("package.json"), package.join("package.json")).expect("a copy");
    let compiler = tools.join("node_modules/typescript/bin/tsc");
    let mut build = command("node", &tools);
    build.arg(&compiler).args(["--project", "clients/typescript", "--outDir"]);
    succeed(build.arg(package.join("dist")));
    let mut programs = Vec::new();
    for document in ["clients/typescript/README.md", "docs/how-to/workers.md"] {
        let text = fs::read_to_string(root().join(document)).expect("a document");
        let is_ours = |block: &&str| !block.contains("express") && !block.contains("fastify");
        let of_language = blocks(&text).into_iter().filter(|(info, _)| info.starts_with("ts"));
        for block in of_language.map(|(_, block)| block).filter(is_ours) {
            programs.push(format!("{}.ts", programs.len()));
            fs::write(folder.join(programs.last().expect("one")), block).expect("a file");
        }
    }
    assert!(programs.len() >= 3, "{programs:?}");
    let options = r#""target": "es2022", "module": "nodenext", "lib": ["es2022", "dom"],
        "types": [], "strict": true, "exactOptionalPropertyTypes": true, "noEmit": true"#;
    let config = format!("{{\"compilerOptions\": {{{options}}}, \"files\": {programs:?}}}");
    fs::write(folder.join("tsconfig.json"), config).expect("a file");
    fs::write(folder.join("package.json"), "{\"type\": \"module\"}").expect("a file");
    succeed(command("node", &tools).arg(compiler).arg("--project").arg(&folder));
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut documents = Vec::new();
    for folder in ["", "docs", "docs/how-to", "clients", "clients/python", "clients/typescript"] {
        documents.extend(markdown(&root().join(folder)));
    }
    assert!(documents.len() > BOOK.len());
    let broken: Vec<String> =
        documents.iter().flat_map(|document| broken_links(document)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What is promised there: fifteen lines, in every language.
#[test]
fn a_worker_has_at_most_fifteen_lines() {
    let text = fs::read_to_string(root().join("docs/how-to/workers.md")).expect("the document");
    let workers = blocks(&text).into_iter().filter(|(info, _)| info.contains("file=worker."));
    let lengths: Vec<usize> = workers.map(|(_, block)| block.lines().count()).collect();
    assert!(lengths.len() == 3 && lengths.iter().all(|lines| *lines <= 15), "{lengths:?}");
}

/// A row without a command would be a promise.
#[test]
fn every_feature_of_the_five_systems_has_a_command_that_shows_it() {
    let text = fs::read_to_string(root().join("docs/five-systems.md")).expect("the document");
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| feature |");
    let rows: Vec<&str> = text.lines().filter(is_row).collect();
    let runs = |row: &&&str| row.contains(" | `$ ") && row.ends_with("` |");
    assert!(rows.len() >= 80 && rows.iter().all(|row| runs(&row)), "{rows:#?}");
}

/// A document that is not in the list would be read by nobody before its readers.
#[test]
fn every_block_in_a_document_is_run_or_cannot_be() {
    let book = root().join("crates/tollway-book");
    let read = |file: &str| fs::read_to_string(book.join(file)).expect("the documents' programs");
    let (compiled, run) = (read("src/lib.rs"), read("build.rs"));
    for folder in ["docs", "docs/how-to", "clients", "clients/python", "clients/typescript"] {
        for document in markdown(&root().join(folder)) {
            let name = document.strip_prefix(root()).expect("ours").to_str().expect("text");
            let text = fs::read_to_string(&document).expect("a document");
            for (info, block) in blocks(&text) {
                let is_run = match info.split([' ', ',']).next().unwrap_or_default() {
                    "rust" if info.contains("file=") => run.contains(&format!("\"{name}\"")),
                    "rust" => compiled.contains(&format!("{name}\")")),
                    "sh" if info.contains("of-program") => run.contains(&format!("\"{name}\"")),
                    "sh" if info.contains("not-run") => needs_more_than_a_test_has(block),
                    "text" => true,
                    "sh" | "python" | "js" | "ts" => BOOK.contains(&name),
                    _ => info.contains("file=") && BOOK.contains(&name),
                };
                assert!(is_run, "{name}: nothing runs this block\n{info}\n{block}");
            }
        }
    }
}

/// Whether every command of the block needs a registry, an engine, a cluster or the internet.
fn needs_more_than_a_test_has(block: &str) -> bool {
    let outside =
        ["cargo ", "docker ", "helm install", "rustup ", "https://", "npm install", "pip install"];
    block.lines().all(|line| outside.iter().any(|word| line.contains(word)))
}

/// The info string and the content of every fenced block.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split("\n```").collect();
    let fenced = parts.chunks(2).filter_map(|pair| pair.get(1).copied());
    fenced.map(|block| block.split_once('\n').unwrap_or((block, ""))).collect()
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

fn broken_links(document: &Path) -> Vec<String> {
    let text = fs::read_to_string(document).expect("a document");
    let mut broken = Vec::new();
    for part in text.split("](").skip(1) {
        let target = part.split([')', ' ']).next().unwrap_or_default();
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let folder = document.parent().expect("a folder");
        let path = if file.is_empty() { document.to_owned() } else { folder.join(file) };
        let leads = path.exists() && (heading.is_empty() || has_heading(&path, heading));
        if !target.contains("://") && !leads {
            broken.push(format!("{}: {target}", document.display()));
        }
    }
    broken
}

/// Whether the document has a heading with that anchor, as GitHub makes anchors: in lower case,
/// without punctuation, hyphens for spaces.
fn has_heading(document: &Path, anchor: &str) -> bool {
    let text = fs::read_to_string(document).expect("a document");
    let is_kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    let of = |line: &str| line.to_lowercase().chars().filter(is_kept).collect::<String>();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| of(line.trim_start_matches('#').trim()).replace(' ', "-") == anchor)
}
