//! What a queue says about itself: estimates, jobs, figures.

use tollway_core::Timestamp;

use super::estimate::{Bound, Position, estimate, served_before};
use super::gate::Opens;
use super::group::GroupState;
use super::history::EndedJob;
use super::jobs::{Entry, Stage};
use super::page::Page;
use super::queue::{Queue, Scope};
use crate::job::{Estimate, Job, JobState};
use crate::{Counts, EndMark, Ended, Group, GroupStats, JobId, Limit, Stats};

impl Queue {
    /// When a job that waits will start; `None` if it does not wait or nobody can tell.
    pub(crate) fn estimate(&self, id: u64, scope: &Scope<'_>) -> Option<Estimate> {
        let entry = self.jobs.entries.get(&id)?;
        let group = self.groups.get(entry.group);
        if entry.stage == Stage::Running || self.paused || group.paused {
            return None;
        }
        let now = scope.now;
        let due = Timestamp::from_nanos(entry.due_ns);
        let (ahead, due) = match entry.stage {
            Stage::Waiting => (self.jobs.ranks.units_before(group.waiting, entry.place(id)), now),
            _ => {
                let place = entry.delayed_place(id);
                let delayed = self.jobs.ranks.units_before(group.delayed, place);
                (self.jobs.ranks.units(group.waiting) + delayed, due)
            }
        };
        let base = now.max(due).max(group.blocked_until);
        let (weight, heaviest) = (entry.weight, self.jobs.heaviest());
        let position = Position { ahead, weight, heaviest, base, now };
        let limits = group.limits(&self.settings.group_limits);
        let before = |bound: &[Limit]| {
            let all = self.jobs.units - u64::from(weight);
            let jobs_in = |rounds| self.jobs.rounds.jobs(rounds);
            served_before(&position, limits, bound, all, jobs_in)
        };
        let shared = self.settings.shared.iter().filter_map(|name| scope.shared.get(name));
        let of_shared = shared.map(|(limit, gate)| {
            let bound = std::slice::from_ref(limit);
            // Queues do not take turns: all of the others may go first.
            let ahead = before(bound) + scope.sharers.units;
            let heaviest = heaviest.max(scope.sharers.heaviest);
            let position = Position { ahead, heaviest, ..position };
            Bound { gates: std::slice::from_ref(gate), limits: bound, position }
        });
        let of_group = Bound { gates: &group.gates.0, limits, position };
        let wide = &self.settings.queue_limits;
        let all = Position { ahead: before(wide), ..position };
        let of_queue = Bound { gates: &self.gates.0, limits: wide, position: all };
        let bounds = [of_group, of_queue].into_iter().chain(of_shared);
        let told = self.settings.response_max;
        let (mean, longest) = (self.response_times.mean(told), self.response_times.slowest(told));
        Some(estimate(base, bounds, mean, longest))
    }

    pub(crate) fn job(&self, id: JobId, scope: &Scope<'_>) -> Option<Job> {
        let id = id.0;
        if let Some(entry) = self.jobs.entries.get(&id) {
            let group = &self.groups.get(entry.group).name;
            return Some(job(id, entry, group, self.state(id, entry, scope)));
        }
        if let Some(over) = self.history.dead.get(&id) {
            let state = JobState::Dead { at: over.at, reason: over.reason.clone() };
            return Some(job(id, &over.entry, &over.group, state));
        }
        let over = self.history.done.get(&id)?;
        Some(job(id, &over.entry, &over.group, JobState::Done { at: over.at, result: None }))
    }

    fn state(&self, id: u64, entry: &Entry, scope: &Scope<'_>) -> JobState {
        match self.leases.running.get(&id) {
            Some(running) => JobState::Running {
                worker: running.worker.to_string(),
                leased_at: running.leased_at,
                expires_at: running.expires_at,
                progress: running.progress,
                cancelled: running.cancelled,
            },
            None => JobState::Waiting {
                due_at: Timestamp::from_nanos(entry.due_ns),
                ready: self.estimate(id, scope),
            },
        }
    }

    /// The next jobs of a group, in the order in which they start.
    pub(crate) fn peek(&self, group: &Group, max: usize, scope: &Scope<'_>) -> Vec<Job> {
        let Some(number) = self.groups.find(group.as_str()) else { return Vec::new() };
        let group = self.groups.get(number);
        let (mut jobs, mut page) = (Vec::new(), Page::of(max));
        for tree in [group.waiting, group.delayed] {
            let mut next = self.jobs.ranks.first(tree);
            while let Some((place, _)) = next
                && page.has_room()
            {
                page.add(self.jobs.of(place.id).payload_len as usize);
                jobs.extend(self.job(JobId(place.id), scope));
                next = self.jobs.ranks.after(tree, place);
            }
        }
        jobs
    }

    pub(crate) fn dead(&self, after: Option<JobId>, max: usize, scope: &Scope<'_>) -> Vec<Job> {
        let from = after.map_or(0, |id| id.0.saturating_add(1));
        let (mut jobs, mut page) = (Vec::new(), Page::of(max));
        for (id, over) in self.history.dead.range(from..) {
            if !page.has_room() {
                break;
            }
            page.add(over.bytes());
            jobs.extend(self.job(JobId(*id), scope));
        }
        jobs
    }

    /// Jobs that run, in the order of their ids.
    pub(crate) fn running(&self, after: Option<JobId>, max: usize, scope: &Scope<'_>) -> Vec<Job> {
        let from = after.map_or(0, |id| id.0.saturating_add(1));
        let mut ids: Vec<u64> = self.leases.ids().filter(|id| *id >= from).collect();
        ids.sort_unstable();
        let (mut jobs, mut page) = (Vec::new(), Page::of(max));
        for id in ids {
            if !page.has_room() {
                break;
            }
            page.add(self.jobs.of(id).payload_len as usize);
            jobs.extend(self.job(JobId(id), scope));
        }
        jobs
    }

    /// Jobs that ended after `after`, those first that ended first.
    pub(crate) fn ended(&self, after: Option<EndMark>, max: usize, scope: &Scope<'_>) -> Ended {
        let Some(after) = after else {
            return Ended { jobs: Vec::new(), mark: self.history.last_end() };
        };
        let (mut jobs, mut page) = (Vec::new(), Page::of(max));
        for id in self.history.ended_after(after) {
            if !page.has_room() {
                break;
            }
            // Results are not here: whoever adds them looks at their bytes.
            page.add(self.history.dead.get(&id).map_or(0, EndedJob::bytes));
            jobs.extend(self.job(JobId(id), scope));
        }
        Ended { mark: jobs.last().and_then(Job::end_mark).unwrap_or(after), jobs }
    }

    /// The figures of the queue and of a page of its groups.
    pub(crate) fn stats(&mut self, after: Option<&Group>, max: usize, now: Timestamp) -> Stats {
        let oldest = self.jobs.oldest();
        let mut page: Vec<GroupStats> = self
            .groups
            .after(after)
            .take(max + 1)
            .map(|group| self.group_stats(group, now))
            .collect();
        let more = page.len() > max;
        page.truncate(max);
        let running = self.leases.running.len() as u64;
        Stats {
            queue: Counts {
                waiting: self.jobs.waiting,
                delayed: self.jobs.entries.len() as u64 - self.jobs.waiting - running,
                running,
            },
            paused: self.paused,
            groups_total: self.groups.len() as u64,
            dead: self.history.dead.len() as u64,
            done: self.history.done.len() as u64,
            totals: self.totals,
            oldest,
            next: self.wake.next,
            after: page.last().filter(|_| more).map(|last| last.group.clone()),
            groups: page,
        }
    }

    fn group_stats(&self, group: &GroupState, now: Timestamp) -> GroupStats {
        let first = self.jobs.ranks.first(group.waiting);
        let limits = &self.settings.group_limits;
        let opens = first.map(|(_, weight)| group.opens(limits, weight, now));
        let delayed = self.jobs.ranks.first(group.delayed).map(|(place, _)| place.due_ns);
        let next = match opens {
            Some(Opens::At(at)) => Some(at.max(now)),
            Some(Opens::Unknown) => None,
            None => delayed.map(Timestamp::from_nanos),
        };
        GroupStats {
            group: group.name.clone(),
            counts: Counts {
                waiting: u64::from(group.waiting.len()),
                delayed: u64::from(group.delayed.len()),
                running: u64::from(group.running),
            },
            paused: group.paused,
            blocked_until: Some(group.blocked_until).filter(|until| *until > now),
            next: next.filter(|_| !group.paused && !self.paused),
        }
    }
}

fn job(id: u64, entry: &Entry, group: &Group, state: JobState) -> Job {
    Job {
        id: JobId(id),
        group: group.clone(),
        payload: bytes::Bytes::new(),
        priority: entry.priority,
        weight: entry.weight,
        enqueued_at: entry.enqueued_at,
        attempt: entry.attempt,
        failures: entry.failures,
        past: entry.past().to_vec(),
        state,
    }
}
