//! Which part of the benchmark is run.

use tollway_testkit::servers::Engine;

/// One client alone, one request at a time on each of many connections, and pipelines.
const SHAPES: [(&str, (usize, usize)); 3] = [("1x1", (1, 1)), ("50x1", (50, 1)), ("4x16", (4, 16))];

pub(crate) struct Chosen {
    pub(crate) engines: Vec<Engine>,
    pub(crate) shapes: Vec<(usize, usize)>,
    pub(crate) callers: bool,
    pub(crate) sliding: bool,
}

impl Chosen {
    /// All of it, or what the words name; options are cargo's.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let words: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
        let mut engines = Vec::new();
        let mut part =
            Self { engines: Vec::new(), shapes: Vec::new(), callers: false, sliding: false };
        let mut is_part = false;
        for word in &words {
            match word.as_str() {
                "redis" => engines.push(Engine::Redis),
                "valkey" => engines.push(Engine::Valkey),
                other => {
                    is_part = true;
                    part.add(other)?;
                }
            }
        }
        if !is_part {
            let shapes = SHAPES.iter().map(|(_, shape)| *shape).collect();
            part = Self { shapes, callers: true, sliding: true, ..part };
        }
        let is_chosen = |engine: &Engine| engines.is_empty() || engines.contains(engine);
        part.engines = Engine::available().into_iter().filter(is_chosen).collect();
        Ok(part)
    }

    fn add(&mut self, word: &str) -> Result<(), String> {
        match (word, SHAPES.iter().find(|(name, _)| *name == word)) {
            (_, Some((_, shape))) => self.shapes.push(*shape),
            ("callers", _) => self.callers = true,
            ("sliding", _) => self.sliding = true,
            _ => {
                return Err(format!(
                    "{word}: not one of redis, valkey, 1x1, 50x1, 4x16, callers, sliding"
                ));
            }
        }
        Ok(())
    }
}
