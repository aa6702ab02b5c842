//! A group: its jobs in order, what is in use of its limits, and where it waits for its turn.

use std::collections::BTreeMap;

use tollway_core::Timestamp;

use super::gate::Opens;
use super::gates::Gates;
use super::ranks::Tree;
use super::turns::Spot;
use crate::{Group, Limit};

/// What is remembered of a group that is not idle.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) name: Group,
    pub(crate) waiting: Tree,
    pub(crate) delayed: Tree,
    pub(crate) running: u32,
    /// Limits in place of the queue's.
    pub(crate) own_limits: Option<Box<[Limit]>>,
    /// What is in use of its limits.
    pub(crate) gates: Gates,
    pub(crate) blocked_until: Timestamp,
    pub(crate) paused: bool,
    /// Units that it may still start in this round.
    pub(crate) deficit: u64,
    pub(crate) spot: Spot,
    /// When the first of its delayed jobs is due.
    pub(crate) due_ns: Option<u64>,
    /// When it is to be forgotten, if nothing happens.
    pub(crate) forget_at: Option<Timestamp>,
    /// Whether a storage holds something of it.
    pub(crate) stored: bool,
}

impl GroupState {
    pub(crate) fn new(name: Group) -> Self {
        Self {
            name,
            waiting: Tree::default(),
            delayed: Tree::default(),
            running: 0,
            own_limits: None,
            gates: Gates::default(),
            blocked_until: Timestamp::MIN,
            paused: false,
            deficit: 0,
            spot: Spot::Nowhere,
            due_ns: None,
            forget_at: None,
            stored: false,
        }
    }

    pub(crate) fn limits<'a>(&'a self, default: &'a [Limit]) -> &'a [Limit] {
        self.own_limits.as_deref().unwrap_or(default)
    }

    /// How many of its jobs do not run.
    pub(crate) const fn line_len(&self) -> u32 {
        self.waiting.len() + self.delayed.len()
    }

    /// What is in use of its limits, and these.
    pub(crate) fn gates_mut<'a>(
        &'a mut self,
        default: &'a [Limit],
    ) -> (&'a mut Gates, &'a [Limit]) {
        (&mut self.gates, self.own_limits.as_deref().unwrap_or(default))
    }

    /// When a job of `weight` may start as far as this group is concerned.
    pub(crate) fn opens(&self, default: &[Limit], weight: u32, now: Timestamp) -> Opens {
        let opens = self.gates.opens(self.limits(default), weight, now);
        opens.max(Opens::At(self.blocked_until))
    }

    /// From when on there is nothing to remember; `None` as long as something must happen first.
    pub(crate) fn vacant_at(&self, default: &[Limit]) -> Option<Timestamp> {
        let busy = !self.waiting.is_empty() || !self.delayed.is_empty() || self.running > 0;
        if busy || self.paused || self.own_limits.is_some() {
            return None;
        }
        let vacant_at = self.gates.vacant_at(self.limits(default))?;
        Some(vacant_at.max(self.blocked_until))
    }
}

/// The groups of a queue that are not idle, by number and by name.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    slots: Vec<Option<GroupState>>,
    names: BTreeMap<Group, u32>,
    free: Vec<u32>,
}

impl Groups {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The number of the group called `name`, which is made if need be.
    pub(crate) fn number(&mut self, name: &Group) -> u32 {
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        let group = Some(GroupState::new(name.clone()));
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = group;
                number
            }
            None => {
                self.slots.push(group);
                u32::try_from(self.slots.len() - 1).expect("groups_max is a u32")
            }
        };
        self.names.insert(name.clone(), number);
        number
    }

    pub(crate) fn forget(&mut self, number: u32) {
        if let Some(group) = self.slots[number as usize].take() {
            self.names.remove(&group.name);
            self.free.push(number);
        }
        if self.names.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn get(&self, number: u32) -> &GroupState {
        self.slots[number as usize].as_ref().expect("a group in use is not forgotten")
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut GroupState {
        self.slots[number as usize].as_mut().expect("a group in use is not forgotten")
    }

    /// The numbers of all groups.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.names.values().copied().collect()
    }

    /// The groups whose names are after `after`, in order.
    pub(crate) fn after(&self, after: Option<&Group>) -> impl Iterator<Item = &GroupState> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.names.range::<Group, _>((from, Bound::Unbounded)).map(|(_, number)| self.get(*number))
    }
}
