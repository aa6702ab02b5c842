//! What one request asks of a layer's limits: policy, key and cost for each limit that applies.

use std::sync::Arc;

use tollway_core::{Algorithm, Charge, Clock, Cost, Key, PlanSource, Policy};

use crate::Head;
use crate::guard::guarded;
use crate::keys::{KEY_BYTES_MAX, KeyBuf, NoKey};
use crate::limit::{Limit, MissingKey};
use crate::refusal::Reason;

/// The most limits of one layer. It bounds what a request can make a store do at once.
pub(crate) const LIMITS_MAX: usize = 8;

/// No header field can carry this byte, so no client can choose the key of those without one.
const SHARED_KEY: &[u8] = b"\0no key";

/// A limit with the policies that it may apply.
pub(crate) struct Gated {
    /// The one that holds unless another is chosen.
    pub(crate) policy: Policy,
    /// Those that may be chosen, in the order of their names.
    pub(crate) others: Box<[Policy]>,
    pub(crate) limit: Limit,
}

/// The policy that a limit applies to a request: 0 for the usual one, `n` for the nth other. Three
/// bytes, which keeps what is copied with each request small; no limiter has the sixteen million
/// policies that would need more.
#[derive(Debug, Clone, Copy, Default)]
struct Choice([u8; 3]);

impl Choice {
    const USUAL: Self = Self([0; 3]);

    /// The other policy of that index.
    fn other(index: usize) -> Self {
        let [.., high, middle, low] = (index + 1).to_be_bytes();
        Self([high, middle, low])
    }

    /// Which other policy it is, unless it is the usual one.
    fn index(self) -> Option<usize> {
        let Self([high, middle, low]) = self;
        (u32::from_be_bytes([0, high, middle, low]) as usize).checked_sub(1)
    }
}

/// Whether units are held until the response ends, and then given back.
pub(crate) fn holds(policy: &Policy) -> bool {
    matches!(policy.algorithm(), Algorithm::Concurrency(_))
}

impl Gated {
    fn chosen(&self, choice: Choice) -> &Policy {
        let other = choice.index().and_then(|index| self.others.get(index));
        other.unwrap_or(&self.policy)
    }

    /// What the limit's function chooses for `head`.
    #[inline]
    fn choice(&self, head: &Head<'_>) -> Result<Choice, Reason> {
        let Some(chooser) = &self.limit.chooser else { return Ok(Choice::USUAL) };
        let mut choice = Choice::USUAL;
        let mut find = |name: &str| {
            let found = self.others.binary_search_by(|policy| policy.name().cmp(name));
            choice = found.map_or(Choice::USUAL, Choice::other);
        };
        guarded(|| chooser(head, &mut find)).map_err(|_| Reason::Panicked)?;
        Ok(choice)
    }
}

/// The plans of keys, by the limits that they are for; almost always there are none.
type Plans = Option<Arc<[Option<Arc<Policy>>; LIMITS_MAX]>>;

/// Which of a layer's limits take part, one bit each, in order, and by which policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct LimitSet {
    bits: u8,
    choices: [Choice; LIMITS_MAX],
    plans: Plans,
}

impl LimitSet {
    /// The first limit alone.
    pub(crate) const FIRST: Self =
        Self { bits: 1, choices: [Choice::USUAL; LIMITS_MAX], plans: None };

    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let bits = self.bits;
        (0..LIMITS_MAX).filter(move |index| bits & (1 << index) != 0)
    }

    /// The policies that apply, in the order of their limits.
    pub(crate) fn policies<'a>(&'a self, limits: &'a [Gated]) -> impl Iterator<Item = &'a Policy> {
        self.indices().map(move |index| match plan_at(&self.plans, index) {
            Some(plan) => plan,
            None => limits[index].chosen(self.choices[index]),
        })
    }
}

fn plan_at(plans: &Plans, limit: usize) -> Option<&Policy> {
    plans.as_ref().and_then(|plans| plans[limit].as_deref())
}

/// Keys and costs of one request, owned, so that it can be asked again after a wait.
pub(crate) struct Demand {
    keys: KeyBuf,
    plans: Plans,
    entries: [Entry; LIMITS_MAX],
    len: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    limit: u8,
    choice: Choice,
    /// Eight keys of [`KEY_BYTES_MAX`] fit easily.
    key_end: u32,
    cost: Cost,
}

impl Demand {
    /// A demand for nothing.
    #[inline]
    pub(crate) const fn new() -> Self {
        let vacant = Entry { limit: 0, choice: Choice::USUAL, key_end: 0, cost: Cost::ONE };
        Self { keys: KeyBuf::new(), plans: None, entries: [vacant; LIMITS_MAX], len: 0 }
    }

    /// A demand for one unit of the first limit by that key.
    pub(crate) fn of_one(keys: KeyBuf) -> Self {
        let mut demand = Self::new();
        demand.entries[0].key_end = keys.len() as u32;
        (demand.keys, demand.len) = (keys, 1);
        demand
    }

    /// What requests with the same keys under the same limits have in common, whatever they cost.
    pub(crate) fn name(&self) -> Vec<u8> {
        let mut name = self.keys.bytes().to_vec();
        for entry in self.entries() {
            name.push(entry.limit);
            name.extend_from_slice(&entry.choice.0);
            name.extend_from_slice(&entry.key_end.to_be_bytes());
        }
        name
    }

    /// Adds what `head` asks of `limits`. Filled in place: returning it would copy it twice.
    pub(crate) fn fill(
        &mut self,
        limits: &[Gated],
        head: &Head<'_>,
        clock: &dyn Clock,
    ) -> Result<(), Reason> {
        for (index, gated) in limits.iter().enumerate() {
            let Some(cost) = applicable_cost(&gated.limit, head)? else { continue };
            let choice = gated.choice(head)?;
            if write_key(&gated.limit, head, &mut self.keys)? {
                let key_end = self.keys.len() as u32;
                if let Some(plans) = &gated.limit.plans {
                    self.look_up((index, gated), &**plans, clock);
                }
                self.entries[self.len] = Entry { limit: index as u8, choice, key_end, cost };
                self.len += 1;
            }
        }
        Ok(())
    }

    /// Notes the plan of the key that was written last, if there is one that fits.
    #[cold]
    fn look_up(
        &mut self,
        (index, gated): (usize, &Gated),
        source: &dyn PlanSource,
        clock: &dyn Clock,
    ) {
        let start = match self.len.checked_sub(1) {
            Some(last) => self.entries[last].key_end as usize,
            None => 0,
        };
        let key = &self.keys.bytes()[start..];
        let plan = guarded(|| source.plan(key, clock.now())).ok().flatten();
        if let Some(plan) = plan.filter(|plan| holds(plan) == holds(&gated.policy)) {
            let mut plans = self.plans.take().map(|plans| (*plans).clone()).unwrap_or_default();
            plans[index] = Some(plan);
            self.plans = Some(Arc::new(plans));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    pub(crate) fn limits(&self) -> LimitSet {
        let choices = [Choice::USUAL; LIMITS_MAX];
        let mut set = LimitSet { bits: 0, choices, plans: self.plans.clone() };
        for entry in self.entries() {
            set.bits |= 1 << entry.limit;
            set.choices[usize::from(entry.limit)] = entry.choice;
        }
        set
    }

    /// The costs asked, in order.
    pub(crate) fn costs(&self) -> impl Iterator<Item = u64> {
        self.entries().iter().map(|entry| entry.cost.get())
    }

    /// Calls `ask` with the charges on `limits`.
    #[inline(always)]
    pub(crate) fn with_charges<T>(
        &self,
        limits: &[Gated],
        ask: impl FnOnce(&[Charge<'_>]) -> T,
    ) -> T {
        let [first, others @ ..] = self.entries() else { return ask(&[]) };
        let first_charge = self.charge(limits, first, 0);
        if others.is_empty() {
            return ask(&[first_charge]);
        }
        let mut charges = [first_charge; LIMITS_MAX];
        let mut start = first.key_end;
        for (entry, charge) in others.iter().zip(&mut charges[1..]) {
            *charge = self.charge(limits, entry, start);
            start = entry.key_end;
        }
        ask(&charges[..self.len])
    }

    fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    #[inline(always)]
    fn charge<'a>(&'a self, limits: &'a [Gated], entry: &Entry, start: u32) -> Charge<'a> {
        let bytes = &self.keys.bytes()[start as usize..entry.key_end as usize];
        let index = usize::from(entry.limit);
        let policy = match plan_at(&self.plans, index) {
            Some(plan) => plan,
            None => limits[index].chosen(entry.choice),
        };
        Charge::new(policy, charged(bytes)).cost(entry.cost)
    }
}

/// The key made of bytes that [`write_key`] wrote.
#[inline]
pub(crate) fn charged(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes).expect("write_key refuses empty and overlong keys")
}

/// Appends the limit's key; false if the limit does not apply for want of one.
#[inline]
pub(crate) fn write_key(limit: &Limit, head: &Head<'_>, keys: &mut KeyBuf) -> Result<bool, Reason> {
    let start = keys.len();
    let found = guarded(|| limit.key.write_key(head, keys)).unwrap_or(Err(NoKey::Panicked));
    if found.is_ok() && (1..=KEY_BYTES_MAX).contains(&(keys.len() - start)) {
        return Ok(true);
    }
    keys.truncate(start);
    write_missing_key(limit, found.err().unwrap_or(NoKey::Missing), keys)
}

#[cold]
fn write_missing_key(limit: &Limit, missing: NoKey, keys: &mut KeyBuf) -> Result<bool, Reason> {
    match (missing, limit.missing) {
        (NoKey::Panicked, _) => Err(Reason::Panicked),
        (NoKey::Missing, MissingKey::Deny) => Err(Reason::NoKey),
        (NoKey::Missing, MissingKey::Skip) => Ok(false),
        (NoKey::Missing, MissingKey::Share) => {
            keys.push(SHARED_KEY);
            Ok(true)
        }
    }
}

/// The cost of a limit that applies to `head`.
#[inline]
fn applicable_cost(limit: &Limit, head: &Head<'_>) -> Result<Option<Cost>, Reason> {
    if let Some(only_if) = &limit.only_if
        && !guarded(|| only_if(head)).map_err(|_| Reason::Panicked)?
    {
        return Ok(None);
    }
    match &limit.cost {
        None => Ok(Some(Cost::ONE)),
        Some(cost) => Ok(Cost::new(guarded(|| cost(head)).map_err(|_| Reason::Panicked)?)),
    }
}
