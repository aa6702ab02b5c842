//! What Redis tells of a queue: jobs, pages of them, figures.

use redis::Value;

use super::decode::{
    bytes, damaged, ended, list, number, over, past, running, stats, text, unsigned, waiting,
};
use super::encode;
use super::estimate::{Frame, GroupTold};
use super::operations::{QueueCall, decimal, word};
use crate::error::Error;
use crate::{EndMark, Ended, Group, Job, JobId, PAGE_BYTES, Stats};

impl QueueCall<'_> {
    pub(super) async fn job(&self, id: JobId) -> Result<Option<Job>, Error> {
        let answer = self.query(vec![word("job"), decimal(id)]).await?;
        self.read_job(id, list(answer)?).await
    }

    pub(super) async fn ended(&self, after: Option<EndMark>, max: usize) -> Result<Ended, Error> {
        let [at, id] = after.map(encode::end_mark).unwrap_or_default();
        let arguments = vec![word("ended"), at, id, decimal(PAGE_BYTES), decimal(max)];
        ended(&list(self.query(arguments).await?)?, after)
    }

    pub(super) async fn peek(&self, group: &Group, max: usize) -> Result<Vec<Job>, Error> {
        let group = word(group.as_str());
        let arguments = vec![word("peek"), group, decimal(max), decimal(PAGE_BYTES)];
        self.read_line(list(self.query(arguments).await?)?).await
    }

    pub(super) async fn stats(&self, after: Option<Group>, max: usize) -> Result<Stats, Error> {
        let after = after.map_or(String::new(), |group| format!("({group}"));
        let arguments = vec![word("stats"), after.into_bytes(), decimal(max)];
        let mut stats = stats(self.query(arguments).await?, max)?;
        stats.next = stats.next.map(|next| self.inner.by_caller(next));
        Ok(stats)
    }

    pub(super) async fn dead(&self, after: Option<JobId>, max: usize) -> Result<Vec<Job>, Error> {
        let answer = self.page("dead", after, max).await?;
        let read = |pair: &[Value]| over(unsigned(&pair[0])?, bytes(&pair[1])?, true);
        answer.get(1..).unwrap_or_default().chunks_exact(2).map(read).collect()
    }

    pub(super) async fn running(
        &self,
        after: Option<JobId>,
        max: usize,
    ) -> Result<Vec<Job>, Error> {
        let answer = self.page("running", after, max).await?;
        let read = |part: &[Value]| {
            let job = running(unsigned(&part[0])?, bytes(&part[1])?, bytes(&part[2])?)?;
            Ok(Job { past: past(bytes(&part[3])?)?, ..job })
        };
        answer.get(1..).unwrap_or_default().chunks_exact(4).map(read).collect()
    }

    /// A page of the jobs of a kind whose ids are after `after`.
    async fn page(
        &self,
        kind: &str,
        after: Option<JobId>,
        max: usize,
    ) -> Result<Vec<Value>, Error> {
        let after = decimal(after.map_or(0, |id| id.0));
        list(self.query(vec![word(kind), after, decimal(max), decimal(PAGE_BYTES)]).await?)
    }

    /// A job from the answer of `QUERY` about it.
    async fn read_job(&self, id: JobId, mut answer: Vec<Value>) -> Result<Option<Job>, Error> {
        let [frame, sort, ..] = &answer[..] else { return Err(damaged()) };
        let frame = Frame::read(frame)?;
        match (text(sort)?, answer.len()) {
            ("live", 7) => {
                let ahead = number(&answer[5])?;
                let past = past(bytes(&answer[6])?)?;
                let setting = self.context.setting(self.inner, frame).await?;
                let told = GroupTold::read(&list(answer.remove(4))?, &setting)?;
                let (job, lease) = (bytes(&answer[2])?, bytes(&answer[3])?);
                let found = if lease.is_empty() {
                    waiting(id.0, job, &told, ahead)
                } else {
                    running(id.0, job, lease)
                };
                found.map(|job| Some(Job { past, ..job }))
            }
            ("done", 3) => over(id.0, bytes(&answer[2])?, false).map(Some),
            ("dead", 3) => over(id.0, bytes(&answer[2])?, true).map(Some),
            _ => Ok(None),
        }
    }

    /// The waiting jobs of a group from the answer of `QUERY` about it.
    async fn read_line(&self, mut answer: Vec<Value>) -> Result<Vec<Job>, Error> {
        if answer.len() < 2 {
            return Err(damaged());
        }
        let setting = self.context.setting(self.inner, Frame::read(&answer[0])?).await?;
        let told = GroupTold::read(&list(answer.remove(1))?, &setting)?;
        let read = |part: &[Value]| {
            let job = waiting(unsigned(&part[0])?, bytes(&part[1])?, &told, number(&part[2])?)?;
            Ok(Job { past: past(bytes(&part[3])?)?, ..job })
        };
        answer[1..].chunks_exact(4).map(read).collect()
    }
}
