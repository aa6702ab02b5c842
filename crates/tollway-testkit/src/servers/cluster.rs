//! Three primaries with a replica each, as a client of a cluster meets them.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Engine, Server, eventually, tell};

/// A cluster of six servers, which fails over in about two seconds.
#[derive(Debug)]
pub struct Cluster {
    /// The six of them; which are primaries may change.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts one, and waits until every node knows every other.
    pub fn start(engine: Engine) -> Self {
        // Without the last, a replica takes five seconds to sync, and cannot be elected before.
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let nodes: Vec<Server> = (0..6).map(|_| Server::start(engine, &arguments)).collect();
        let mut create = Command::new(engine.client());
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let created = create.output().expect("the client runs");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes };
        eventually(Duration::from_secs(60), || cluster.nodes.iter().all(is_ready));
        cluster
    }

    /// A cluster that all tests of this binary share, each under a prefix of its own.
    pub fn shared(engine: Engine) -> &'static Self {
        static CLUSTERS: [OnceLock<Cluster>; 3] = [const { OnceLock::new() }; 3];
        CLUSTERS[engine as usize].get_or_init(|| Self::start(engine))
    }

    /// How a client of `tollway-redis` names it.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|n| format!("127.0.0.1:{}", n.port)).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// The primary of the slot of a key with this tag.
    pub fn primary_of(&self, tag: &str) -> &Server {
        let owner =
            |node: &&Server| tell(node.port, &["SET", tag, "x"]).is_ok_and(|a| a == "+OK\r\n");
        self.nodes.iter().find(owner).expect("every slot has an owner")
    }
}

fn is_ready(node: &Server) -> bool {
    let info = tell(node.port, &["CLUSTER", "INFO"]).unwrap_or_default();
    let replication = tell(node.port, &["INFO", "replication"]).unwrap_or_default();
    info.contains("cluster_state:ok")
        && info.contains("cluster_known_nodes:6")
        && (replication.contains("master_link_status:up")
            || (replication.contains("role:master") && replication.contains("state=online")))
}
