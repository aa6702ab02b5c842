//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`: one stream.
//!
//! ```text
//!   reports ---> buckets: id -> limit by the domain's descriptor rules -> holder of a portion
//!   Told ------> waiting --one message at a time--> client --ping--> acknowledged
//! ```
//!
//! The next message is sent when the client has acknowledged the one before. So a client that does
//! not read is sent one message, and what waits for it is at most one instruction for each bucket.
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | a message | 4 MiB, in the room of all connections | `RESOURCE_EXHAUSTED` |
//! | buckets | [`BUCKETS_MAX`] of a stream, all of all streams | `RESOURCE_EXHAUSTED` |
//! | a bucket's id | [`PAIRS_MAX`] pairs, [`ID_BYTES_MAX`] bytes | `INVALID_ARGUMENT` |
//! | acknowledgement | a third of a portion's lifetime | the connection is closed |
//!
//! Times in reports are not looked at, and counts are only demand: whoever exaggerates gets an
//! equal part.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel, unbounded_channel};
use tokio::time::Instant;
use tollway_core::division::{Divisible, Order, Portion};
use tonic::{Code, Status};

use super::messages;
use super::pings::{Pings, StreamPings};
use super::quota_messages::{
    Assignment, BucketAction, BucketId, Nothing, QuotaResponse, Strategy, TokenBucket, UInt32Value,
    UsageReports,
};
use super::streaming::{StreamBody, UnreadMessages, framed};
use crate::drain::Stop;
use crate::http2::{Holder, Unread, discard};
use crate::quota_streams::{Holding, LIFETIME_DEFAULT, QuotaStreams, Told};
use crate::rls::{Divided, divided};
use crate::worker::Worker;

/// The path of the method.
pub(super) const PATH: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

const BUCKETS_MAX: usize = 10_000;
const PAIRS_MAX: usize = 8;
const ID_BYTES_MAX: usize = 4 * 1024;
/// Bytes of bucket ids in one message: the first must fit into one frame.
const SENT_BYTES_MAX: usize = 8 * 1024;
const TICK: Duration = Duration::from_millis(50);
const PREFIX_BYTES: usize = 5;
const ALLOW_ALL: i32 = 0;
const DENY_ALL: i32 = 1;

/// One bucket of the stream.
struct Bucket {
    id: BucketId,
    limited: Limited,
}

/// By what a bucket is limited.
enum Limited {
    Portion(Holding),
    Blanket(i32),
}

/// What was sent and is not acknowledged.
struct Outstanding {
    bytes: u64,
    told: Vec<Told>,
}

struct Stream {
    worker: Rc<Worker>,
    number: u64,
    domain: Option<String>,
    buckets: BTreeMap<usize, Bucket>,
    by_id: HashMap<BucketId, usize>,
    next: usize,
    /// Blankets by when they are renewed.
    blankets: VecDeque<(Instant, usize)>,
    waiting: VecDeque<Told>,
    outstanding: Option<Outstanding>,
    pings: StreamPings,
    messages: Sender<Result<Bytes, Status>>,
}

/// Begins a stream.
pub(super) fn answer(
    worker: &Rc<Worker>,
    body: Incoming,
    pings: &Pings,
    holder: Holder,
    stop: Stop,
) -> Result<Response<tonic::body::Body>, Status> {
    let Some(pings) = pings.stream() else {
        let text = "too many quota streams on one connection";
        return Err(Status::new(Code::ResourceExhausted, text));
    };
    let (messages, receiver) = channel(2);
    let (sender, told) = unbounded_channel();
    let number = quotas(worker).new_id();
    quotas(worker).open(number, sender);
    let stream = Stream {
        worker: Rc::clone(worker),
        number,
        domain: None,
        buckets: BTreeMap::new(),
        by_id: HashMap::new(),
        next: 0,
        blankets: VecDeque::new(),
        waiting: VecDeque::new(),
        outstanding: None,
        pings,
        messages,
    };
    tokio::task::spawn_local(stream.run(body, holder, told, stop));
    let body = tonic::body::Body::new(StreamBody { messages: receiver });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

fn quotas(worker: &Worker) -> &QuotaStreams {
    worker.service.quota_streams()
}

impl Stream {
    async fn run(
        mut self,
        mut body: Incoming,
        holder: Holder,
        told: UnboundedReceiver<Told>,
        stop: Stop,
    ) {
        let end = self.serve(&mut body, &holder, told, stop).await;
        self.close();
        if let Err(status) = end {
            if status.code() != Code::Unavailable {
                quotas(&self.worker).counts.refused.add(1);
                tracing::warn!(why = status.message(), "a quota stream was ended");
            }
            // Fails if the client is gone already.
            let _ = self.messages.try_send(Err(status));
            discard(&mut body).await;
        } else {
            let _ = self.messages.try_send(Err(Status::new(Code::Ok, "")));
        }
    }

    async fn serve(
        &mut self,
        body: &mut Incoming,
        holder: &Holder,
        mut told: UnboundedReceiver<Told>,
        mut stop: Stop,
    ) -> Result<(), Status> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut unread = UnreadMessages::default();
        let acknowledged = self.pings.told();
        loop {
            tokio::select! {
                frame = body.frame() => match frame {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(Unread::Broken(error.to_string()).into()),
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else { continue };
                        unread.add(&data, holder)?;
                        while let Some(message) = unread.next()? {
                            self.report(&message)?;
                        }
                    }
                },
                Some(instruction) = told.recv() => self.hear(instruction)?,
                () = acknowledged.notified() => {}
                _ = ticks.tick() => {
                    quotas(&self.worker).tick();
                    self.renew_blankets();
                }
                () = self.messages.closed() => return Ok(()),
                () = stop.stopped() => {
                    return Err(Status::new(Code::Unavailable, "the service is about to stop"));
                }
            }
            while let Ok(instruction) = told.try_recv() {
                self.hear(instruction)?;
            }
            self.confirm();
            self.send();
        }
    }

    /// Takes what the buckets were used for.
    fn report(&mut self, message: &UsageReports) -> Result<(), Status> {
        let invalid = |text: String| Status::new(Code::InvalidArgument, text);
        match &self.domain {
            None if message.domain.is_empty() => {
                return Err(invalid("the first message must name a domain".to_owned()));
            }
            None => self.domain = Some(message.domain.clone()),
            Some(domain) if message.domain.is_empty() || *domain == message.domain => {}
            Some(domain) => {
                let found = &message.domain;
                return Err(invalid(format!("the domain was {domain:?} and is now {found:?}")));
            }
        }
        for usage in &message.usages {
            let Some(id) = &usage.bucket_id else {
                return Err(invalid("a report has no bucket_id".to_owned()));
            };
            self.used(id, usage.allowed, usage.denied)?;
        }
        Ok(())
    }

    fn used(&mut self, id: &BucketId, allowed: u64, denied: u64) -> Result<(), Status> {
        let mut id = id.clone();
        id.bucket.sort_unstable();
        check(&id)?;
        let limited = {
            let entries: Vec<_> = id.bucket.iter().map(|it| (&*it.key, &*it.value)).collect();
            let rules = self.worker.service.enforcer.rules();
            let domain = self.domain.as_deref().unwrap_or_default();
            let found = divided(&rules, domain, &entries);
            if let Some(tally) = found.tally {
                tally.allowed.add(allowed);
                tally.denied.add(denied);
            }
            found.divided
        };
        let bucket = self.bucket(id, limited)?;
        let Some(Limited::Portion(holding)) = self.buckets.get(&bucket).map(|it| &it.limited)
        else {
            return Ok(());
        };
        let requests = allowed.saturating_add(denied);
        if quotas(&self.worker).report(self.number, bucket, holding, requests) {
            return Ok(());
        }
        Err(Status::new(Code::ResourceExhausted, "too many buckets over all streams"))
    }

    /// The bucket of this id, limited as the rules now say.
    fn bucket(&mut self, id: BucketId, divided: Divided) -> Result<usize, Status> {
        let known = self.by_id.get(&id).copied();
        let old = known.and_then(|number| self.buckets.get(&number)).map(|it| &it.limited);
        let limited = match (divided, old) {
            (Divided::Quota { key, quota }, old) => {
                let lifetime = self.lifetime();
                let Ok(terms) = Divisible::new(quota, lifetime) else {
                    let text = "a quota that cannot be divided: see `tollway validate`";
                    return Err(Status::new(Code::FailedPrecondition, text));
                };
                match (old, known) {
                    (Some(Limited::Portion(holding)), Some(number))
                        if *holding.key == *key && holding.terms == terms =>
                    {
                        return Ok(number);
                    }
                    _ => {
                        let holder = quotas(&self.worker).new_id();
                        Limited::Portion(Holding { holder, key: Arc::from(key), terms })
                    }
                }
            }
            (Divided::Blanket { allows }, Some(Limited::Blanket(blanket)))
                if allows == (*blanket == ALLOW_ALL) =>
            {
                return Ok(known.unwrap_or_default());
            }
            (Divided::Blanket { allows }, _) => {
                Limited::Blanket(if allows { ALLOW_ALL } else { DENY_ALL })
            }
        };
        if self.buckets.len() >= BUCKETS_MAX && known.is_none() {
            let text = format!("more than {BUCKETS_MAX} buckets on one stream");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        // Another number: what is on its way to the old one is not for the new one.
        if let Some(number) = known {
            self.forget(number);
        }
        self.next += 1;
        if let Limited::Blanket(_) = limited {
            self.blankets.push_back((Instant::now(), self.next));
        }
        self.by_id.insert(id.clone(), self.next);
        self.buckets.insert(self.next, Bucket { id, limited });
        self.renew_blankets();
        Ok(self.next)
    }

    fn forget(&mut self, number: usize) {
        let Some(bucket) = self.buckets.remove(&number) else { return };
        self.by_id.remove(&bucket.id);
        if let Limited::Portion(holding) = &bucket.limited {
            quotas(&self.worker).leave(holding);
        }
    }

    /// Gives up all portions, which may be in force until they expire.
    fn close(&mut self) {
        let buckets = std::mem::take(&mut self.buckets);
        let holdings = buckets.values().filter_map(|bucket| match &bucket.limited {
            Limited::Portion(holding) => Some(holding),
            Limited::Blanket(_) => None,
        });
        quotas(&self.worker).close(self.number, holdings);
    }

    fn lifetime(&self) -> Duration {
        self.worker.service.settings().quota_lifetime.unwrap_or(LIFETIME_DEFAULT)
    }

    fn hear(&mut self, told: Told) -> Result<(), Status> {
        if told.instruction.order == Order::Close {
            quotas(&self.worker).counts.unacknowledged.add(1);
            self.pings.close_connection();
            let text = "an assignment was not acknowledged in time";
            return Err(Status::new(Code::Unavailable, text));
        }
        self.waiting.push_back(told);
        Ok(())
    }

    /// Blankets need no acknowledgement: they are renewed as time passes.
    fn renew_blankets(&mut self) {
        let now = Instant::now();
        while let Some((at, number)) = self.blankets.front().copied() {
            if at > now {
                return;
            }
            self.blankets.pop_front();
            if !self.buckets.contains_key(&number) {
                continue;
            }
            self.blankets.push_back((now + self.lifetime() / 3, number));
            let order = Order::Assign(Portion::NONE);
            let instruction = tollway_core::division::Instruction { holder: 0, number: 0, order };
            self.waiting.push_back(Told { bucket: number, instruction });
        }
    }

    /// Notes what the client has acknowledged.
    fn confirm(&mut self) {
        let acknowledged = self.pings.acknowledged();
        let Some(sent) = self.outstanding.take_if(|sent| sent.bytes <= acknowledged) else {
            return;
        };
        for Told { bucket, instruction } in sent.told {
            let Some(Limited::Portion(holding)) = self.buckets.get(&bucket).map(|it| &it.limited)
            else {
                continue;
            };
            quotas(&self.worker).acknowledge(holding, instruction.number);
            if instruction.order == Order::Abandon {
                self.forget(bucket);
            }
        }
    }

    /// Sends what waits, unless something is not acknowledged yet.
    fn send(&mut self) {
        if self.outstanding.is_some() || self.waiting.is_empty() {
            return;
        }
        let (mut response, mut told, mut bytes) = (QuotaResponse::default(), Vec::new(), 0);
        while let Some(next) = self.waiting.front().copied() {
            let Some(bucket) = self.buckets.get(&next.bucket) else {
                self.waiting.pop_front();
                continue;
            };
            let action = action(bucket, next.instruction.order, self.lifetime());
            bytes += action.encoded_len() + PREFIX_BYTES;
            if bytes > SENT_BYTES_MAX && !told.is_empty() {
                break;
            }
            self.waiting.pop_front();
            response.actions.push(action);
            told.push(next);
        }
        if told.is_empty() {
            return;
        }
        let message = framed(&response);
        let Some(bytes) = self.pings.ping_behind(&message) else {
            // Another stream of the connection begins just now: this one is next.
            told.into_iter().rev().for_each(|told| self.waiting.push_front(told));
            return;
        };
        quotas(&self.worker).counts.assignments.add(told.len() as u64);
        self.outstanding = Some(Outstanding { bytes, told });
        // There is room: the message before was acknowledged. A client that is gone is noticed.
        let _ = self.messages.try_send(Ok(message));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

fn check(id: &BucketId) -> Result<(), Status> {
    let bytes: usize = id.bucket.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    let has_empty = id.bucket.iter().any(|entry| entry.key.is_empty() || entry.value.is_empty());
    let has_twice = id.bucket.windows(2).any(|pair| pair[0].key == pair[1].key);
    if id.bucket.is_empty() || has_empty || has_twice {
        let text = "a bucket_id must have pairs of a key and a value, each key once";
        return Err(Status::new(Code::InvalidArgument, text));
    }
    if id.bucket.len() > PAIRS_MAX || bytes > ID_BYTES_MAX {
        let text = format!(
            "a bucket_id has {} pairs and {bytes} bytes; expected at most {PAIRS_MAX} and \
             {ID_BYTES_MAX}",
            id.bucket.len()
        );
        return Err(Status::new(Code::InvalidArgument, text));
    }
    Ok(())
}

fn action(bucket: &Bucket, order: Order, lifetime: Duration) -> BucketAction {
    let bucket_id = Some(bucket.id.clone());
    let duration = |time: Duration| {
        Some(messages::Duration {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanos: 0,
        })
    };
    let strategy = match (&bucket.limited, order) {
        (_, Order::Abandon | Order::Close) => {
            return BucketAction { bucket_id, assignment: None, abandon: Some(Nothing {}) };
        }
        (Limited::Blanket(blanket), _) => Strategy { blanket: Some(*blanket), token_bucket: None },
        (Limited::Portion(_), Order::Assign(Portion::NONE)) => {
            Strategy { blanket: Some(DENY_ALL), token_bucket: None }
        }
        (Limited::Portion(holding), Order::Assign(portion)) => Strategy {
            blanket: None,
            token_bucket: Some(TokenBucket {
                max_tokens: portion.max_tokens,
                tokens_per_fill: Some(UInt32Value { value: portion.tokens_per_fill }),
                fill_interval: duration(holding.terms.fill_interval()),
            }),
        },
    };
    let assignment = Assignment { lifetime: duration(lifetime), strategy: Some(strategy) };
    BucketAction { bucket_id, assignment: Some(assignment), abandon: None }
}
