//! Jobs in order, with the units before any of them: inserted, removed and ranked in O(log n).
//!
//! A treap in an arena: a search tree by place, a heap by a hash of the id, and in every node the
//! units of its subtree. All groups of a queue share one arena, so a group without jobs costs the
//! four bytes of an absent root.
//!
//! Rejected: a Fenwick tree per group (a job that returns to the head has no index there), a skip
//! list (twice the memory), `BTreeSet` (cannot say how much is before a place).

/// Where a job stands: by rank (priority turned around), then by time, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey {
    pub(crate) rank: u8,
    pub(crate) due_ns: u64,
    pub(crate) id: u64,
}

/// A sequence of places in an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    root: u32,
    len: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: NIL, len: 0 }
    }
}

impl Tree {
    pub(crate) const fn len(self) -> u32 {
        self.len
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    due_ns: u64,
    id: u64,
    /// Units of the whole subtree.
    sum: u64,
    left: u32,
    right: u32,
    weight: u32,
    rank: u8,
}

impl Node {
    const fn place(&self) -> SortKey {
        SortKey { rank: self.rank, due_ns: self.due_ns, id: self.id }
    }

    /// What makes the tree balanced: ids are given by the queue, so nobody can choose these.
    const fn height(&self) -> u64 {
        let mixed = (self.id ^ self.id >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

/// The arena of all sequences of a queue.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl Ranks {
    /// Inserts a place that is not there yet.
    pub(crate) fn insert(&mut self, tree: &mut Tree, place: SortKey, weight: u32) {
        let node = Node {
            due_ns: place.due_ns,
            id: place.id,
            sum: u64::from(weight),
            left: NIL,
            right: NIL,
            weight,
            rank: place.rank,
        };
        let index = self.allocate(node);
        let (before, after) = self.split(tree.root, place);
        let before = self.merge(before, index);
        tree.root = self.merge(before, after);
        tree.len += 1;
    }

    /// Removes a place; whether it was there.
    pub(crate) fn remove(&mut self, tree: &mut Tree, place: SortKey) -> bool {
        let Some(root) = self.without(tree.root, place) else { return false };
        tree.root = root;
        tree.len -= 1;
        self.shrink();
        true
    }

    /// The first place and its weight.
    pub(crate) fn first(&self, tree: Tree) -> Option<(SortKey, u32)> {
        let mut at = tree.root;
        let mut first = None;
        while at != NIL {
            let node = self.node(at);
            first = Some((node.place(), node.weight));
            at = node.left;
        }
        first
    }

    /// The first place after `place`.
    pub(crate) fn after(&self, tree: Tree, place: SortKey) -> Option<(SortKey, u32)> {
        let mut at = tree.root;
        let mut found = None;
        while at != NIL {
            let node = self.node(at);
            if node.place() > place {
                found = Some((node.place(), node.weight));
                at = node.left;
            } else {
                at = node.right;
            }
        }
        found
    }

    /// The units of everything before `place`.
    pub(crate) fn units_before(&self, tree: Tree, place: SortKey) -> u64 {
        let mut at = tree.root;
        let mut units = 0;
        while at != NIL {
            let node = self.node(at);
            if node.place() < place {
                units += self.sum(node.left) + u64::from(node.weight);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        units
    }

    /// The units of everything.
    pub(crate) fn units(&self, tree: Tree) -> u64 {
        self.sum(tree.root)
    }

    /// The bytes that the arena holds on to.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * size_of::<u32>()
    }

    fn allocate(&mut self, node: Node) -> u32 {
        if let Some(index) = self.free.pop() {
            self.nodes[index as usize] = node;
            return index;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("jobs_max keeps the arena below 2^32 nodes")
    }

    /// Gives the memory back once nothing is left: an idle queue costs nothing.
    fn shrink(&mut self) {
        if self.free.len() == self.nodes.len() {
            *self = Self::default();
        }
    }

    /// The root of `at` without `place`; `None` if it is not there.
    fn without(&mut self, at: u32, place: SortKey) -> Option<u32> {
        if at == NIL {
            return None;
        }
        let node = *self.node(at);
        match place.cmp(&node.place()) {
            std::cmp::Ordering::Equal => {
                self.free.push(at);
                return Some(self.merge(node.left, node.right));
            }
            std::cmp::Ordering::Less => {
                self.nodes[at as usize].left = self.without(node.left, place)?;
            }
            std::cmp::Ordering::Greater => {
                self.nodes[at as usize].right = self.without(node.right, place)?;
            }
        }
        self.update(at);
        Some(at)
    }

    /// What is before `place`, and the rest.
    fn split(&mut self, at: u32, place: SortKey) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let node = *self.node(at);
        if node.place() < place {
            let (before, after) = self.split(node.right, place);
            self.nodes[at as usize].right = before;
            self.update(at);
            (at, after)
        } else {
            let (before, after) = self.split(node.left, place);
            self.nodes[at as usize].left = after;
            self.update(at);
            (before, at)
        }
    }

    /// Both together, everything in `first` being before everything in `second`.
    fn merge(&mut self, first: u32, second: u32) -> u32 {
        if first == NIL || second == NIL {
            return if first == NIL { second } else { first };
        }
        if self.node(first).height() > self.node(second).height() {
            let right = self.merge(self.node(first).right, second);
            self.nodes[first as usize].right = right;
            self.update(first);
            first
        } else {
            let left = self.merge(first, self.node(second).left);
            self.nodes[second as usize].left = left;
            self.update(second);
            second
        }
    }

    fn update(&mut self, at: u32) {
        let node = self.node(at);
        let sum = self.sum(node.left) + self.sum(node.right) + u64::from(node.weight);
        self.nodes[at as usize].sum = sum;
    }

    fn sum(&self, at: u32) -> u64 {
        if at == NIL { 0 } else { self.node(at).sum }
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: u8, due_ns: u64, id: u64) -> SortKey {
        SortKey { rank, due_ns, id }
    }

    #[test]
    fn units_before_a_place_agree_with_a_sorted_list() {
        let (mut ranks, mut tree) = (Ranks::default(), Tree::default());
        let mut list: Vec<(SortKey, u32)> = Vec::new();
        let mut random = 7u64;
        for id in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (rank, due_ns, weight) =
                ((random >> 60) as u8, random >> 40 & 0xff, (random >> 33 & 7) as u32);
            let place = place(rank, due_ns, id);
            ranks.insert(&mut tree, place, weight);
            list.push((place, weight));
            if random >> 20 & 3 == 0 {
                let (gone, _) = list.swap_remove((random >> 8) as usize % list.len());
                assert!(ranks.remove(&mut tree, gone) && !ranks.remove(&mut tree, gone));
            }
        }
        list.sort();
        let mut units = 0;
        let mut at = ranks.first(tree);
        for (place, weight) in &list {
            assert_eq!(at, Some((*place, *weight)));
            assert_eq!(ranks.units_before(tree, *place), units);
            units += u64::from(*weight);
            at = ranks.after(tree, *place);
        }
        assert_eq!((ranks.units(tree), tree.len() as usize, at), (units, list.len(), None));
    }

    #[test]
    fn an_empty_arena_costs_nothing() {
        let (mut ranks, mut tree) = (Ranks::default(), Tree::default());
        for id in 0..1_000 {
            ranks.insert(&mut tree, place(0, 0, id), 1);
        }
        for id in 0..1_000 {
            ranks.remove(&mut tree, place(0, 0, id));
        }
        assert_eq!(ranks.bytes(), 0);
    }
}
