//! A tree made of the owners that a configuration names: checked, and worked out to buckets.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Bucket, Owner, PathStep, Percent, Role, SharedQuota, Shares, SharesError};
use crate::gcra::Gcra;
use crate::{Key, Policy, Quota};

/// Units per nanoseconds, reduced.
#[derive(Clone, Copy)]
struct Rate {
    units: u128,
    ns: u128,
}

impl Rate {
    fn of(quota: Quota) -> Self {
        Self::reduced(quota.units().into(), quota.period().as_nanos())
    }

    fn reduced(units: u128, ns: u128) -> Self {
        let (mut common, mut rest) = (units, ns);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        Self { units: units / common, ns: ns / common }
    }

    /// A part of it; `None` if no quota has such a rate.
    fn part(self, percent: Percent) -> Option<Self> {
        let units = self.units * u128::from(percent.hundredths());
        let part = Self::reduced(units, self.ns * u128::from(Percent::WHOLE));
        let is_quota =
            part.units <= u128::from(Quota::UNITS_MAX) && part.ns <= Quota::PERIOD_MAX.as_nanos();
        is_quota.then_some(part)
    }

    fn is_below(self, other: Self) -> bool {
        self.units * other.ns < other.units * self.ns
    }

    /// Whole units that come back in a time.
    fn units_in(self, ns: u128) -> u64 {
        u64::try_from(self.units * ns / self.ns).unwrap_or(u64::MAX).min(Quota::UNITS_MAX)
    }

    fn quota(self, burst: u64) -> Option<Quota> {
        let period_ns = u64::try_from(self.ns).ok()?;
        let units = u64::try_from(self.units).ok()?;
        Quota::with_burst(units, Duration::from_nanos(period_ns), burst).ok()
    }
}

/// What an owner, or the root, has: worked out from the root down.
#[derive(Clone, Copy)]
struct Standing {
    /// The guaranteed rate and the size of its bucket.
    floor: Option<(Rate, u64)>,
    /// The rate that it never exceeds, and its burst.
    ceiling: (Rate, u64),
    /// Whether that is less than the parent's.
    is_capped: bool,
}

pub(super) fn build(
    name: &str,
    quota: Quota,
    reclaim: Option<Duration>,
    owners: Vec<Owner>,
) -> Result<Shares, SharesError> {
    let burst_ns =
        u128::from(quota.burst()) * quota.period().as_nanos() / u128::from(quota.units());
    let half = Duration::from_nanos(u64::try_from(burst_ns / 2).unwrap_or(u64::MAX));
    let reclaim = reclaim.unwrap_or(half);
    if owners.is_empty() || owners.len() > Shares::OWNERS_MAX {
        let (found, most) = (owners.len(), Shares::OWNERS_MAX);
        return Err(SharesError::of_policy("owners", format!("expected 1 to {most}, not {found}")));
    }
    let by_key = by_key(&owners)?;
    let parents = parents(&owners, &by_key)?;
    let order = from_the_root(&owners, &parents)?;
    let standings = standings(quota, reclaim, &owners, &parents, &order)?;
    let kept = kept(quota, &owners, &parents, &standings)?;
    let tree = Tree { name, quota, owners: &owners, parents: &parents, standings: &standings };
    let (buckets, paths) = tree.buckets_and_paths(&kept)?;
    let numbers = buckets.iter().map(|bucket| bucket.policy.id());
    let tree = numbers.fold(0, |all: u64, id| all.rotate_left(5) ^ id);
    let shared = SharedQuota::new(Gcra::new(quota), kept[owners.len()], tree);
    let key = String::from(name);
    Ok(Shares { key, quota, reclaim, buckets, owners, paths, by_key, shared })
}

fn by_key(owners: &[Owner]) -> Result<BTreeMap<String, usize>, SharesError> {
    let mut by_key = BTreeMap::new();
    for (index, Owner { key, .. }) in owners.iter().enumerate() {
        Key::new(key.as_bytes())
            .map_err(|error| SharesError::of_owner(index, "key", format!("{error}")))?;
        if by_key.insert(key.clone(), index).is_some() {
            let problem = format!("{key:?} is the key of an owner above; expected another");
            return Err(SharesError::of_owner(index, "key", problem));
        }
    }
    Ok(by_key)
}

/// The parent of each owner; the number behind the last owner is the root's.
fn parents(owners: &[Owner], by_key: &BTreeMap<String, usize>) -> Result<Vec<usize>, SharesError> {
    let parent = |(index, owner): (usize, &Owner)| {
        let Some(parent) = &owner.parent else { return Ok(owners.len()) };
        by_key.get(parent).copied().ok_or_else(|| {
            let likely = crate::spelling::unknown("owner", parent, by_key.keys().map(|key| &**key));
            SharesError::of_owner(index, "parent", likely)
        })
    };
    owners.iter().enumerate().map(parent).collect()
}

/// The owners with their depths, parents before children; an error if some are their own parents.
fn from_the_root(owners: &[Owner], parents: &[usize]) -> Result<Vec<(usize, usize)>, SharesError> {
    let root = owners.len();
    let mut order = Vec::with_capacity(root);
    for (index, owner) in owners.iter().enumerate() {
        let (mut depth, mut above) = (1, parents[index]);
        while above != root {
            if above == index || depth > owners.len() {
                let problem = format!("{:?} is below itself", owner.key);
                return Err(SharesError::of_owner(index, "parent", problem));
            }
            (depth, above) = (depth + 1, parents[above]);
        }
        if depth > Shares::DEPTH_MAX {
            let most = Shares::DEPTH_MAX;
            let problem = format!(
                "{:?} is {depth} levels below the quota; expected at most {most}",
                owner.key
            );
            return Err(SharesError::of_owner(index, "parent", problem));
        }
        order.push((depth, index));
    }
    order.sort_unstable();
    Ok(order)
}

fn standings(
    quota: Quota,
    reclaim: Duration,
    owners: &[Owner],
    parents: &[usize],
    order: &[(usize, usize)],
) -> Result<Vec<Standing>, SharesError> {
    let root = Standing {
        floor: Some((Rate::of(quota), quota.burst())),
        ceiling: (Rate::of(quota), quota.burst()),
        is_capped: false,
    };
    let mut standings = vec![root; owners.len() + 1];
    for &(depth, index) in order {
        let above = standings[parents[index]];
        standings[index] = standing(index, &owners[index], depth, above, reclaim)?;
    }
    Ok(standings)
}

fn standing(
    index: usize,
    owner: &Owner,
    depth: usize,
    above: Standing,
    reclaim: Duration,
) -> Result<Standing, SharesError> {
    let wrong = |field, problem: String| Err(SharesError::of_owner(index, field, problem));
    let floor = match (owner.floor, above.floor) {
        (None, _) => None,
        (Some(_), None) => {
            return wrong("floor", "its parent has no floor of which it could have a part".into());
        }
        (Some(percent), Some((rate, _))) => {
            let Some(rate) = rate.part(percent) else {
                return wrong(
                    "floor",
                    format!("{percent} of its parent is too fine; expected a rounder one"),
                );
            };
            // Half with each level, so that a parent has more than it keeps for its children.
            let size = rate.units_in(reclaim.as_nanos() >> (depth - 1));
            if size == 0 || rate.quota(size).is_none() {
                let problem = "refills less than one unit in its part of `reclaim`; expected a \
                               larger floor, a longer `reclaim` or fewer levels";
                return wrong("floor", problem.into());
            }
            Some((rate, size))
        }
    };
    let (above_rate, above_burst) = above.ceiling;
    let whole = Percent::from_hundredths(Percent::WHOLE);
    let Some(percent) = owner.ceiling.filter(|percent| Some(*percent) != whole) else {
        return Ok(Standing { floor, ceiling: above.ceiling, is_capped: false });
    };
    let Some(rate) = above_rate.part(percent) else {
        return wrong(
            "ceiling",
            format!("{percent} of its parent is too fine; expected a rounder one"),
        );
    };
    let burst = u128::from(above_burst) * u128::from(percent.hundredths());
    let burst = (burst / u128::from(Percent::WHOLE)) as u64;
    if burst == 0 || rate.quota(burst).is_none() {
        return wrong(
            "ceiling",
            format!("{percent} of a burst of {above_burst} is less than one unit"),
        );
    }
    if let Some((floor, size)) = floor
        && (rate.is_below(floor) || burst < size)
    {
        return wrong("ceiling", format!("{percent} is below its floor"));
    }
    Ok(Standing { floor, ceiling: (rate, burst), is_capped: true })
}

/// What each owner, and last the root, keeps for the floors of its children: at most all of its
/// rate, and less than all of its bucket.
fn kept(
    quota: Quota,
    owners: &[Owner],
    parents: &[usize],
    standings: &[Standing],
) -> Result<Vec<u64>, SharesError> {
    let mut kept = vec![0u64; owners.len() + 1];
    let mut parts = vec![0u32; owners.len() + 1];
    for (index, owner) in owners.iter().enumerate() {
        let parent = parents[index];
        parts[parent] += owner.floor.map_or(0, |floor| u32::from(floor.hundredths()));
        kept[parent] += standings[index].floor.map_or(0, |(_, size)| size);
        if parts[parent] > u32::from(Percent::WHOLE) {
            let of = owners.get(parent).map_or("the quota", |parent| &parent.key);
            let (whole, part) = (parts[parent] / 100, parts[parent] % 100);
            let problem = format!(
                "the floors below {of} add up to {whole}.{part:02}%; expected at most 100%"
            );
            return Err(SharesError::of_owner(index, "floor", problem));
        }
    }
    if kept[owners.len()] >= quota.burst() {
        let (kept, burst) = (kept[owners.len()], quota.burst());
        let problem = format!(
            "the floors would keep {kept} units of a burst of {burst}, so nothing could be lent; \
             expected a shorter time"
        );
        return Err(SharesError::of_policy("reclaim", problem));
    }
    for (index, standing) in standings[..owners.len()].iter().enumerate() {
        if standing.floor.is_some_and(|(_, size)| kept[index] > 0 && kept[index] >= size) {
            let problem = "is so small that nothing of it is left beside the floors below it; \
                           expected a larger one or a longer `reclaim`";
            return Err(SharesError::of_owner(index, "floor", problem));
        }
    }
    Ok(kept)
}

struct Tree<'t> {
    name: &'t str,
    quota: Quota,
    owners: &'t [Owner],
    parents: &'t [usize],
    standings: &'t [Standing],
}

impl Tree<'_> {
    fn buckets_and_paths(
        &self,
        kept: &[u64],
    ) -> Result<(Vec<Bucket>, Vec<Vec<PathStep>>), SharesError> {
        let root = self.owners.len();
        let mut buckets = vec![self.bucket(None, "root", self.quota)?];
        let mut own: Vec<Vec<PathStep>> = Vec::with_capacity(root + 1);
        for (index, standing) in self.standings[..root].iter().enumerate() {
            let mut links = Vec::new();
            let mut add = |role, what: &str, (rate, size): (Rate, u64)| {
                let quota = rate.quota(size);
                let quota =
                    quota.ok_or_else(|| SharesError::of_owner(index, "floor", "no quota"))?;
                links.push(PathStep { bucket: buckets.len(), role });
                buckets.push(self.bucket(Some(index), what, quota)?);
                Ok(())
            };
            if let Some(floor) = standing.floor {
                add(Role::Lender { keeps: kept[index] }, "floor", floor)?;
            }
            // Behind the floor: what that lends passes the ceiling as its own.
            if standing.is_capped {
                let keeps = standing.floor.map_or(0, |(_, size)| size);
                add(Role::Ceiling { keeps }, "ceiling", standing.ceiling)?;
            }
            own.push(links);
        }
        own.push(vec![PathStep { bucket: 0, role: Role::Lender { keeps: kept[root] } }]);
        let paths = (0..=root).map(|index| self.path(index, &own)).collect();
        Ok((buckets, paths))
    }

    fn path(&self, index: usize, own: &[Vec<PathStep>]) -> Vec<PathStep> {
        let mut path = own[index].clone();
        let mut at = index;
        while let Some(&parent) = self.parents.get(at) {
            path.extend_from_slice(&own[parent]);
            at = parent;
        }
        path
    }

    fn bucket(
        &self,
        owner: Option<usize>,
        what: &str,
        quota: Quota,
    ) -> Result<Bucket, SharesError> {
        let key = owner.map_or("", |owner| &*self.owners[owner].key);
        let policy = Policy::part(self.name, &format!("{what} {key}"), Gcra::new(quota));
        let policy = policy.map_err(|error| SharesError::of_policy("name", format!("{error}")))?;
        Ok(Bucket { policy, owner })
    }
}
