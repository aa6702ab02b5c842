//! A script, and the hash by which servers know it.

use redis::Cmd;

/// A script, and the hash by which servers know it.
#[derive(Debug)]
pub struct Script {
    source: String,
    hash: String,
}

impl Script {
    /// A script of this source. Its hash is computed here, once.
    pub fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }

    /// The text of the script.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The hash by which servers know the script.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that runs the script: by its hash, or with its source for a server that does not
    /// know the hash and learns it by this.
    pub fn command<K, A>(&self, with_source: bool, keys: &[K], arguments: &[A]) -> Cmd
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        let mut command = redis::cmd(if with_source { "EVAL" } else { "EVALSHA" });
        command.arg(if with_source { &self.source } else { &self.hash }).arg(keys.len());
        keys.iter().for_each(|key| {
            command.arg(key.as_ref());
        });
        arguments.iter().for_each(|argument| {
            command.arg(argument.as_ref());
        });
        command
    }
}
