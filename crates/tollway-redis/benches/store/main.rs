//! Ours beside plain commands and a plain script, on one server, in one run.
//!
//! `cargo bench -p tollway-redis --bench store` prints the tables of each engine, and last the
//! targets with what was measured. Words choose a part of it: an engine (`redis`, `valkey`), shapes
//! of connections × depth (`1x1`, `50x1`, `4x16`), or `callers` and `sliding`, the tables after
//! those of single requests: `-- valkey 4x16`. Every contender is sent by the same client over the
//! same connections, as bytes made beforehand; ours are the bytes that the store really sends,
//! recorded between it and the server. CPU is the server's own count.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod callers;
mod chosen;
mod contenders;
mod sliding;
mod targets;
mod wire;

use tollway_testkit::servers::Server;

use crate::chosen::Chosen;

fn main() {
    let chosen = match Chosen::parse(std::env::args().skip(1)) {
        Ok(chosen) => chosen,
        Err(message) => {
            println!("{message}");
            std::process::exit(2);
        }
    };
    println!("{}", machine());
    for engine in chosen.engines {
        let server = Server::start(engine, &[]);
        println!("\n## {engine:?} {}\n", version(&server));
        let mut targets = Vec::new();
        if !chosen.shapes.is_empty() {
            targets.extend(contenders::run(&server, &chosen.shapes));
        }
        if chosen.callers {
            targets.extend(callers::run(&server));
        }
        if chosen.sliding {
            sliding::run(&server);
        }
        targets::print(&targets);
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
