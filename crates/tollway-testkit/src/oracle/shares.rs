//! Shares, worked out anew for every question: who may lend is asked of each owner on the way to
//! the root, and what an owner keeps is added up over all of its children.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use num_bigint::BigInt;
use num_rational::BigRational;
use tollway_core::shares::{Percent, Shares};

use super::Model;
use super::change::Remains;
use super::gcra::Bucket;

/// A tree with its buckets. The last node is the root.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// What each request took from which bucket.
    taken: BTreeMap<u64, Vec<(BucketPlace, BigInt)>>,
}

struct Node {
    key: Option<String>,
    parent: Option<usize>,
    floor: Option<Bucket>,
    ceiling: Option<Bucket>,
}

/// A bucket of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BucketPlace {
    node: usize,
    is_ceiling: bool,
}

impl Tree {
    pub(super) fn new(shares: &Shares) -> Arc<Mutex<Self>> {
        let owners = shares.owners();
        let number = |key: &str| owners.iter().position(|owner| owner.key == key);
        let parent =
            |node: usize| owners[node].parent.as_deref().map_or(Some(owners.len()), number);
        // Parts of the root's rate, down the path from the root.
        let part = |node: usize, of: &dyn Fn(usize) -> Option<Percent>| {
            let (mut at, mut part, mut depth) = (Some(node), whole(1), 0u32);
            while let Some(node) = at.filter(|node| *node < owners.len()) {
                let percent = of(node).map_or(Percent::WHOLE, Percent::hundredths);
                part *= BigRational::new(percent.into(), Percent::WHOLE.into());
                (at, depth) = (parent(node), depth + 1);
            }
            (part, depth)
        };
        let quota = shares.quota();
        let ns_per_token = BigRational::new(quota.period().as_nanos().into(), quota.units().into());
        let node = |index: usize| {
            let owner = &owners[index];
            let floor = owner.floor.map(|_| {
                let (part, depth) = part(index, &|node| owners[node].floor);
                let ns_per_token = &ns_per_token / part;
                let time = BigInt::from(shares.reclaim().as_nanos()) >> (depth - 1);
                let size = (BigRational::from_integer(time) / &ns_per_token).floor();
                Bucket::of(size, ns_per_token)
            });
            let ceiling = owner.ceiling.filter(|part| part.hundredths() < Percent::WHOLE);
            let ceiling = ceiling.map(|_| {
                let (rate, _) = part(index, &|node| owners[node].ceiling);
                // Rounded down on every level.
                let mut path = vec![index];
                while let Some(above) = parent(path[path.len() - 1]).filter(|at| *at < owners.len())
                {
                    path.push(above);
                }
                let burst = path.iter().rev().fold(whole(quota.burst()), |burst, node| {
                    let percent = owners[*node].ceiling.map_or(Percent::WHOLE, Percent::hundredths);
                    (burst * whole(percent.into()) / whole(Percent::WHOLE.into())).floor()
                });
                Bucket::of(burst, &ns_per_token / rate)
            });
            Node { key: Some(owner.key.clone()), parent: parent(index), floor, ceiling }
        };
        let mut nodes: Vec<Node> = (0..owners.len()).map(node).collect();
        let root = Bucket::of(whole(quota.burst()), ns_per_token.clone());
        nodes.push(Node { key: None, parent: None, floor: Some(root), ceiling: None });
        Arc::new(Mutex::new(Self { nodes, taken: BTreeMap::new() }))
    }

    /// The nodes from the owner of this key to the root; the root alone for who is no owner.
    fn path(&self, key: &[u8]) -> Vec<usize> {
        let is_it = |node: &Node| node.key.as_ref().is_some_and(|own| own.as_bytes() == key);
        let mut path = vec![self.nodes.iter().position(is_it).unwrap_or(self.nodes.len() - 1)];
        while let Some(parent) = self.nodes[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path
    }

    /// What a node keeps for the floors of its children.
    fn kept(&self, node: usize) -> BigInt {
        let children = self.nodes.iter().filter(|child| child.parent == Some(node));
        children.filter_map(|child| child.floor.as_ref()).map(Bucket::size).sum()
    }

    /// The buckets that give if the node at `lender` on the path lends, and what must stay in each.
    fn asked(&self, path: &[usize], lender: usize) -> Vec<(BucketPlace, BigInt)> {
        let mut asked = Vec::new();
        for (step, &node) in path.iter().enumerate() {
            let Node { floor, ceiling, .. } = &self.nodes[node];
            if floor.is_some() && step >= lender {
                let kept = if step == lender { self.kept(node) } else { BigInt::ZERO };
                asked.push((BucketPlace { node, is_ceiling: false }, kept));
            }
            if ceiling.is_some() {
                let own = floor.as_ref().filter(|_| step < lender).map(Bucket::size);
                asked.push((BucketPlace { node, is_ceiling: true }, own.unwrap_or_default()));
            }
        }
        asked
    }

    /// All that can lend: steps of the path.
    fn lenders(&self, path: &[usize]) -> Vec<usize> {
        (0..path.len()).filter(|step| self.nodes[path[*step]].floor.is_some()).collect()
    }

    fn bucket(&self, place: BucketPlace) -> &Bucket {
        let Node { floor, ceiling, .. } = &self.nodes[place.node];
        let bucket = if place.is_ceiling { ceiling } else { floor };
        bucket.as_ref().expect("only buckets that are there are asked")
    }

    fn bucket_mut(&mut self, place: BucketPlace) -> &mut Bucket {
        let Node { floor, ceiling, .. } = &mut self.nodes[place.node];
        let bucket = if place.is_ceiling { ceiling } else { floor };
        bucket.as_mut().expect("only buckets that are there are asked")
    }

    /// The most that a node lends of what each bucket `has`.
    fn lent(&self, path: &[usize], lender: usize, has: &dyn Fn(&Bucket) -> BigInt) -> BigInt {
        let asked = self.asked(path, lender);
        let left = asked.iter().map(|(place, kept)| has(self.bucket(*place)) - kept);
        left.min().unwrap_or_default().max(BigInt::ZERO)
    }

    fn most(&self, path: &[usize], has: &dyn Fn(&Bucket) -> BigInt) -> BigInt {
        let lent = self.lenders(path).into_iter().map(|lender| self.lent(path, lender, has));
        lent.max().unwrap_or_default()
    }

    /// Every bucket of the path.
    fn places(&self, path: &[usize]) -> Vec<BucketPlace> {
        self.asked(path, 0).into_iter().map(|(place, _)| place).collect()
    }
}

/// One owner of a tree, as a key like others.
pub(super) struct Member {
    tree: Arc<Mutex<Tree>>,
    key: Vec<u8>,
}

impl Member {
    pub(super) fn new(tree: &Arc<Mutex<Tree>>, key: &[u8]) -> Self {
        Self { tree: Arc::clone(tree), key: key.to_vec() }
    }

    fn tree(&self) -> (MutexGuard<'_, Tree>, Vec<usize>) {
        let tree = self.tree.lock().expect("no test goes on after a panic");
        let path = tree.path(&self.key);
        (tree, path)
    }
}

impl Model for Member {
    fn remains(&self, _: &BigInt) -> Remains {
        unreachable!("another tree begins anew")
    }

    fn limit(&self) -> Option<u64> {
        let (tree, path) = self.tree();
        u64::try_from(tree.most(&path, &Bucket::size)).ok()
    }

    fn free(&self, at: &BigInt) -> BigInt {
        let (tree, path) = self.tree();
        tree.most(&path, &|bucket| bucket.free(at))
    }

    fn is_new(&self, at: &BigInt) -> bool {
        let (tree, path) = self.tree();
        tree.places(&path).into_iter().all(|place| tree.bucket(place).is_new(at))
    }

    fn take(&mut self, units: &BigInt, hold: u64, at: &BigInt) -> BigInt {
        let (mut tree, path) = self.tree();
        let lends = |lender: &usize| tree.lent(&path, *lender, &|bucket| bucket.free(at)) >= *units;
        let lender = tree.lenders(&path).into_iter().find(lends);
        let places: Vec<BucketPlace> = match lender {
            Some(lender) => tree.asked(&path, lender).into_iter().map(|(place, _)| place).collect(),
            None => tree.places(&path),
        };
        let take = |place| (place, tree.bucket_mut(place).take(units, hold, at));
        let taken = places.into_iter().map(take).collect();
        tree.taken.insert(hold, taken);
        units.clone()
    }

    fn give_back(&mut self, units: &BigInt, taken_at: Option<&BigInt>, at: &BigInt) {
        let (mut tree, path) = self.tree();
        for place in tree.places(&path) {
            tree.bucket_mut(place).give_back(units, taken_at, at);
        }
    }

    fn clear(&mut self, at: &BigInt) {
        let (mut tree, path) = self.tree();
        for place in tree.places(&path) {
            tree.bucket_mut(place).clear(at);
        }
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        at.clone()
    }

    /// What was taken goes back to where it came from; what was not reserved comes from all.
    fn settle(&mut self, hold: u64, reserved: &BigInt, real: &BigInt, at: &BigInt) -> bool {
        let (mut tree, path) = self.tree();
        let held = tree.taken.remove(&hold).unwrap_or_default();
        if real > reserved {
            for place in tree.places(&path) {
                tree.bucket_mut(place).take(&(real - reserved), hold, at);
            }
            return true;
        }
        for (place, taken) in held.into_iter().filter(|(_, taken)| taken > real) {
            tree.bucket_mut(place).give_back(&(taken - real), None, at);
        }
        true
    }
}

fn whole(number: u64) -> BigRational {
    BigRational::from_integer(number.into())
}
