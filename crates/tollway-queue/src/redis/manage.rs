//! Queues and shared limits as such: made, changed, told, forgotten.

use redis::Value;
use tollway_core::Timestamp;

use super::Inner;
use super::decode::{bytes, damaged, list, number, text};
use super::encode::{self, moment, unpack_limits, unpack_settings};
use super::script::{CONTROL, MANAGE};
use crate::error::{Error, ErrorKind};
use crate::{
    Author, Changed, Described, Limit, QueueName, QueueSettings, SharedLimit, SharedLimits, Version,
};
use tollway_journal::bytes_codec::ByteReader;

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// The bytes of an author, as `scripts/manage_queues.lua` draws them.
fn pack_author(author: &Author) -> Vec<u8> {
    match author {
        Author::Call { expected } => {
            let expected = expected.map_or_else(String::new, |number| number.to_string());
            format!("c{expected}").into_bytes()
        }
        Author::File { digest, is_edit } => {
            let is_edit: &[u8] = if *is_edit { b"f1" } else { b"f0" };
            [is_edit, digest].concat()
        }
    }
}

fn read_version(read: &mut ByteReader<'_>) -> Option<Version> {
    let (number, is_from_file, at) = (read.f64()?, read.flag()?, read.f64()?);
    Some(Version { number: number as u64, is_from_file, at: moment(at as u64) })
}

fn read_changed(value: &Value) -> Result<Changed, Error> {
    let mut read = ByteReader(bytes(value)?);
    let changed = read.flag().zip(read_version(&mut read));
    changed.map(|(taken, version)| Changed { taken, version }).ok_or_else(damaged)
}

/// The version in a record; that of a time before there were records if there is none.
fn version_of(record: &Value) -> Result<Version, Error> {
    match record {
        Value::Nil => Ok(Version::default()),
        record => read_version(&mut ByteReader(bytes(record)?)).ok_or_else(damaged),
    }
}

impl Inner {
    /// Makes a queue or changes its settings, if `author` says something new.
    pub(super) async fn change_queue(
        &self,
        queue: &QueueName,
        base: &[u8],
        settings: &QueueSettings,
        author: &Author,
        now: Timestamp,
    ) -> Result<Changed, Error> {
        let packed_author = pack_author(author);
        let judge = [word("judge"), word(queue.as_str()), packed_author.clone()];
        let foretold = read_changed(&self.query(&MANAGE, (base, now), judge).await?)?;
        if !foretold.taken {
            return Ok(foretold);
        }
        let shared = settings.shared.iter().map(|name| word(name.as_str()));
        // What time has done, it did under the settings of before.
        let reshare = std::iter::once(word("reshare")).chain(shared.clone());
        match self.query(&CONTROL, (base, now), reshare).await {
            Err(error) if error.kind() != ErrorKind::UnknownQueue => return Err(error),
            _ => {}
        }
        let has_limits = u8::from(!settings.queue_limits.is_empty()).to_string().into_bytes();
        let packed = encode::settings(settings);
        let put = [word("put"), word(queue.as_str()), packed_author, packed, has_limits];
        let told = self.change(&MANAGE, (base, now), put.into_iter().chain(shared)).await?;
        self.place_again(base, now).await?;
        read_changed(&told)
    }

    /// A queue's settings and their version.
    pub(super) async fn describe(
        &self,
        queue: &QueueName,
        base: &[u8],
    ) -> Result<Described, Error> {
        let mut command = redis::cmd("HMGET");
        command.arg([base, b"c"].concat()).arg("s").arg("ver");
        let told = list(self.client.ask(&command).await?)?;
        let [settings, record] = &told[..] else { return Err(damaged()) };
        if *settings == Value::Nil {
            let message = format!("there is no queue {queue}");
            return Err(Error::new(ErrorKind::UnknownQueue, message));
        }
        let settings = unpack_settings(bytes(settings)?)?;
        Ok(Described { settings, version: version_of(record)? })
    }

    /// Forgets a queue, a chunk of its keys at a time; whether there was one.
    pub(super) async fn remove(
        &self,
        queue: &QueueName,
        base: &[u8],
        only_empty: bool,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let mut was_there = false;
        if !only_empty {
            self.release_shared(base, now).await?;
        }
        let mut only_empty = only_empty;
        loop {
            let condition = word(if only_empty { "1" } else { "0" });
            let arguments = [word("remove"), word(queue.as_str()), condition];
            let answer = list(self.query(&MANAGE, (base, now), arguments).await?)?;
            let [was, more] = &answer[..] else { return Err(damaged()) };
            was_there |= number(was)? == 1;
            if number(more)? == 0 {
                return Ok(was_there);
            }
            only_empty = false;
        }
    }

    /// Gives back what a queue's jobs hold of limits that it shares: without the queue it would be
    /// held for ever.
    async fn release_shared(&self, base: &[u8], now: Timestamp) -> Result<(), Error> {
        loop {
            match self.query(&CONTROL, (base, now), [word("release")]).await {
                Ok(more) if number(&more)? == 1 => {}
                Err(error) if error.kind() != ErrorKind::UnknownQueue => return Err(error),
                _ => return Ok(()),
            }
        }
    }

    /// Every queue and its settings, in order of names.
    pub(super) async fn list_queues(&self) -> Result<Vec<(QueueName, QueueSettings)>, Error> {
        let read =
            |(name, packed): (QueueName, Value)| Ok((name, unpack_settings(bytes(&packed)?)?));
        self.named("c").await?.into_iter().map(read).collect()
    }

    /// Makes or changes a shared limit, if `author` says something new.
    pub(super) async fn change_shared(
        &self,
        name: &QueueName,
        limit: Limit,
        author: &Author,
        now: Timestamp,
    ) -> Result<Changed, Error> {
        let packed = encode::limits(&[limit]);
        let arguments = [word("shared"), word(name.as_str()), pack_author(author), packed];
        let told = self.change(&MANAGE, (self.base.as_bytes(), now), arguments).await?;
        let changed = read_changed(&told)?;
        if changed.taken {
            self.place_sharers(name, now).await?;
        }
        Ok(changed)
    }

    /// Places the groups of every queue that has a shared limit which was changed.
    async fn place_sharers(&self, limit: &QueueName, now: Timestamp) -> Result<(), Error> {
        let mut command = redis::cmd("SMEMBERS");
        command.arg(format!("{}~u:{limit}", self.base));
        let users = match self.client.ask(&command).await? {
            Value::Set(users) => users,
            value => list(value)?,
        };
        for user in users {
            let base = self.queue_base(&QueueName::new(text(&user)?)?);
            match self.place_again(&base, now).await {
                Err(error) if error.kind() != ErrorKind::UnknownQueue => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every shared limit, in order of names.
    pub(super) async fn shared_limits(&self) -> Result<SharedLimits, Error> {
        let records = self.named("lv").await?;
        let read = |(name, packed): (QueueName, Value)| {
            let limits = unpack_limits(bytes(&packed)?);
            let limit = limits.and_then(|limits| limits.first().copied()).ok_or_else(damaged)?;
            let record = records.iter().find(|(known, _)| *known == name);
            let version =
                record.map_or(Ok(Version::default()), |(_, record)| version_of(record))?;
            Ok((name, SharedLimit { limit, version }))
        };
        self.named("l").await?.into_iter().map(read).collect()
    }

    /// Forgets a shared limit that no queue has; whether there was one.
    pub(super) async fn remove_shared(
        &self,
        name: &QueueName,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let arguments = [word("unshare"), word(name.as_str())];
        let was = self.query(&MANAGE, (self.base.as_bytes(), now), arguments).await?;
        Ok(number(&was)? == 1)
    }

    /// A hash that all queues share, in order of names.
    async fn named(&self, key: &str) -> Result<Vec<(QueueName, Value)>, Error> {
        let mut command = redis::cmd("HGETALL");
        command.arg(format!("{}{key}", self.base));
        let pairs: Vec<Value> = match self.client.ask(&command).await? {
            Value::Map(pairs) => {
                pairs.into_iter().flat_map(|(name, value)| [name, value]).collect()
            }
            value => list(value)?,
        };
        let read = |pair: &[Value]| Ok((QueueName::new(text(&pair[0])?)?, pair[1].clone()));
        let mut named = pairs.chunks_exact(2).map(read).collect::<Result<Vec<_>, Error>>()?;
        named.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(named)
    }

    /// Places every group anew, a chunk at a time: their limits have changed.
    async fn place_again(&self, base: &[u8], now: Timestamp) -> Result<(), Error> {
        let mut cursor = b"0".to_vec();
        loop {
            let arguments = [word("replace"), cursor];
            let answer = self.query(&CONTROL, (base, now), arguments).await?;
            cursor = bytes(&answer)?.to_vec();
            if cursor == b"0" {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_journal::bytes_codec::ByteWriter;

    #[test]
    fn an_author_and_a_version_are_bytes_that_the_script_reads() {
        assert_eq!(pack_author(&Author::CALL), b"c");
        assert_eq!(pack_author(&Author::Call { expected: Some(12) }), b"c12");
        let file = Author::File { digest: *b"0123456789abcdef", is_edit: true };
        assert_eq!(pack_author(&file), b"f10123456789abcdef");
        let mut told = ByteWriter::default();
        told.u8(1).f64(7.0).u8(1).f64(5.0);
        let version = Version { number: 7, is_from_file: true, at: moment(5) };
        let changed = read_changed(&Value::BulkString(told.0)).unwrap();
        assert_eq!(changed, Changed { taken: true, version });
    }
}
