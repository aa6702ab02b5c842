//! Ours beside plain commands and a plain script, on one server, in one run.
//!
//! `cargo bench -p tollgate-redis --bench store` prints the tables of each engine, and last the
//! targets with what was measured. Every contender is sent
//! by the same client over the same connections, as bytes made beforehand; ours are the bytes that
//! the store really sends, recorded between it and the server. CPU is the server's own count.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod callers;
mod contenders;
mod sliding;
mod targets;
mod wire;

use tollgate_sim::servers::{Engine, Server};

fn main() {
    println!("{}", machine());
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        println!("\n## {engine:?} {}\n", version(&server));
        let mut met = contenders::run(&server);
        met.extend(callers::run(&server));
        sliding::run(&server);
        targets::print(&met);
    }
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("# {}; {cores} cores, load {}", model.replace('\t', ""), load.trim())
}

fn version(server: &Server) -> String {
    let info = server.tell(&["INFO", "server"]);
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
    };
    let valkey = field("valkey_version:");
    if valkey.is_empty() { field("redis_version:") } else { valkey }
}
