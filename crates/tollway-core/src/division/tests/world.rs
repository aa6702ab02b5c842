//! Holders with token buckets as Envoy has them, a connection each, and a judge.

use alloc::collections::VecDeque;

use super::super::*;

/// What a holder does with an assignment, as it was measured on Envoy 1.40.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    portion: Portion,
    /// In the unit of the pool.
    level: i128,
    at: Timestamp,
    expires_at: Timestamp,
}

/// A holder and what is on its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) bucket: Option<Bucket>,
    /// The number of its connection, if it has one.
    pub(super) id: Option<u64>,
    /// What is on its way to it.
    pub(super) sent: VecDeque<(Instruction, Timestamp)>,
    /// Acknowledgements on their way back.
    pub(super) acknowledged: VecDeque<u64>,
    /// Requests since its last report.
    pub(super) asked: u64,
    pub(super) admitted: u64,
}

/// Everything, and one bucket of the whole quota that judges what all admit together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) division: Division,
    pub(super) peers: Vec<Peer>,
    terms: Divisible,
    ids: u64,
    judge: Bucket,
}

impl Bucket {
    fn full(portion: Portion, now: Timestamp, terms: &Divisible) -> Self {
        let level = i128::from(portion.max_tokens) * i128::from(terms.interval_nanos());
        Self { portion, level, at: now, expires_at: now.after(terms.lifetime()) }
    }

    fn advance(&mut self, now: Timestamp, terms: &Divisible) {
        let size = i128::from(self.portion.max_tokens) * i128::from(terms.interval_nanos());
        let nanos = now.since(self.at).as_nanos() as i128;
        self.level = (self.level + nanos * i128::from(self.portion.tokens_per_fill)).min(size);
        self.at = now;
    }

    /// A replacement keeps how full the bucket is, and whole tokens.
    fn replace(&mut self, portion: Portion, now: Timestamp, terms: &Divisible) {
        self.advance(now, terms);
        self.expires_at = now.after(terms.lifetime());
        if portion == self.portion {
            return;
        }
        let token = i128::from(terms.interval_nanos());
        let old_size = i128::from(self.portion.max_tokens) * token;
        self.level = i128::from(portion.max_tokens) * self.level / old_size * token;
        self.portion = portion;
    }

    fn take(&mut self, wanted: u64, now: Timestamp, terms: &Divisible) -> u64 {
        self.advance(now, terms);
        let token = i128::from(terms.interval_nanos());
        let taken = (self.level / token).min(i128::from(wanted));
        self.level -= taken * token;
        u64::try_from(taken).unwrap()
    }
}

impl World {
    /// A service that runs for long, and `count` holders without connections.
    pub(super) fn new(terms: Divisible, count: usize) -> Self {
        let now = Timestamp::from_millis(100_000_000);
        Self {
            now,
            division: Division::new(terms.clone(), Timestamp::MIN),
            peers: (0..count).map(|_| Peer::default()).collect(),
            judge: Bucket {
                expires_at: Timestamp::MAX,
                ..Bucket::full(terms.whole(), now, &terms)
            },
            ids: 0,
            terms,
        }
    }

    /// Time passes; what waited for longer than it may is lost with its connection.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for index in 0..self.peers.len() {
            let oldest = self.peers[index].sent.front();
            if oldest.is_some_and(|(_, at)| self.now > at.after(self.terms.patience())) {
                self.cut(index);
            }
        }
        self.instruct();
    }

    pub(super) fn instruct(&mut self) {
        let mut told = Vec::new();
        self.division.instruct(self.now, &mut told);
        for instruction in told {
            let is_it = |peer: &Peer| peer.id == Some(instruction.holder);
            let index = self.peers.iter().position(is_it).expect("only holders are told");
            if instruction.order == Order::Close {
                self.cut(index);
            } else {
                self.peers[index].sent.push_back((instruction, self.now));
            }
        }
    }

    /// Connects and subscribes.
    pub(super) fn join(&mut self, index: usize) {
        self.ids += 1;
        self.peers[index].id = Some(self.ids);
        self.tell(index);
    }

    /// The connection breaks: what is on its way is lost.
    pub(super) fn cut(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        peer.sent.clear();
        peer.acknowledged.clear();
        if let Some(id) = peer.id.take() {
            self.division.leave(id, self.now);
        }
    }

    /// The service is killed and begins again; all connections break.
    pub(super) fn restart(&mut self) {
        self.division = Division::new(self.terms.clone(), self.now);
        for peer in &mut self.peers {
            peer.sent.clear();
            peer.acknowledged.clear();
            peer.id = None;
        }
    }

    /// A report of the bucket, if there is one.
    pub(super) fn report(&mut self, index: usize) {
        let peer = &self.peers[index];
        if peer.bucket.is_some() || peer.asked > 0 {
            self.tell(index);
        }
    }

    fn tell(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some(id) = peer.id else { return };
        self.division.report(id, core::mem::take(&mut peer.asked), self.now);
        self.instruct();
    }

    /// The oldest of what was sent arrives.
    pub(super) fn deliver(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some((instruction, _)) = peer.sent.pop_front() else { return };
        peer.acknowledged.push_back(instruction.number);
        let Order::Assign(portion) = instruction.order else {
            peer.bucket = None;
            return;
        };
        let bucket = peer.bucket.take().filter(|bucket| bucket.expires_at > self.now);
        peer.bucket = match bucket {
            _ if portion == Portion::NONE => None,
            Some(mut bucket) => {
                bucket.replace(portion, self.now, &self.terms);
                Some(bucket)
            }
            None => Some(Bucket::full(portion, self.now, &self.terms)),
        };
    }

    /// The oldest acknowledgement arrives.
    pub(super) fn acknowledge(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let (Some(id), Some(number)) = (peer.id, peer.acknowledged.pop_front()) else { return };
        self.division.acknowledge(id, number, self.now);
        self.instruct();
    }

    /// Whether a holder would admit a request.
    pub(super) fn has_tokens(&self, index: usize) -> bool {
        let bucket = self.peers[index].bucket.as_ref();
        bucket
            .filter(|bucket| bucket.expires_at > self.now)
            .is_some_and(|bucket| bucket.clone().take(1, self.now, &self.terms) > 0)
    }

    /// So many requests come to a holder.
    ///
    /// # Panics
    ///
    /// If more are admitted than the whole quota allows.
    pub(super) fn ask(&mut self, index: usize, requests: u64) -> u64 {
        let peer = &mut self.peers[index];
        peer.asked += requests;
        let bucket = peer.bucket.as_mut().filter(|bucket| bucket.expires_at > self.now);
        let Some(bucket) = bucket else { return 0 };
        let admitted = bucket.take(requests, self.now, &self.terms);
        peer.admitted += admitted;
        let judged = self.judge.take(admitted, self.now, &self.terms);
        assert_eq!(judged, admitted, "one request too many: {self:#?}");
        admitted
    }

    /// So many requests per second come to each holder (`None`: it is not there), a report every
    /// five seconds, everything else arrives at once.
    pub(super) fn run_for(&mut self, time: Duration, rates: &[Option<u64>]) -> u64 {
        let step = Duration::from_millis(50);
        let steps = time.as_millis() / step.as_millis();
        let mut admitted = 0;
        for at in 0..steps {
            for (index, rate) in rates.iter().enumerate() {
                let Some(rate) = rate else { continue };
                admitted += self.ask(index, rate / 20);
                if (at + index as u128 * 7).is_multiple_of(100) {
                    self.report(index);
                }
            }
            self.pass(step);
            for index in 0..self.peers.len() {
                while !self.peers[index].sent.is_empty() {
                    self.deliver(index);
                    self.acknowledge(index);
                }
            }
        }
        admitted
    }
}
