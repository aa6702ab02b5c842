use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;
use tollgate_core::fields::Lines;
use tollgate_upstream::budget::{
    Budgets, Claim, Granted, Knowledge, Priority, Reason, Refusal, Settings, Ticket, Waiter,
};
use tollgate_upstream::profile::{Observation, Profile, Response};

/// Budgets, a clock, and what was let go.
struct Desk {
    profile: Arc<Profile>,
    budgets: Budgets,
    now: Timestamp,
    gone: Vec<(Waiter, Ticket)>,
}

const EPOCH: Duration = Duration::from_secs(1_794_758_400);

impl Desk {
    fn of(profile: Arc<Profile>) -> Self {
        let budgets = Budgets::new(Arc::clone(&profile), Settings::default());
        Self { profile, budgets, now: Timestamp::from_millis(10_000), gone: Vec::new() }
    }

    fn discord() -> Self {
        Self::of(Profile::builtin("discord").expect("it is shipped"))
    }

    fn claim(&self, method: &str, target: &str) -> Claim {
        Claim::new(self.profile.route(method, target))
    }

    fn ask(&mut self, claim: &Claim) -> Result<Granted, Refusal> {
        self.budgets.claim(claim, self.now)
    }

    fn get(&mut self, target: &str) -> Granted {
        let claim = self.claim("GET", target);
        self.ask(&claim).expect("there is room")
    }

    /// A request that must be let go at once.
    fn go(&mut self, target: &str) -> Ticket {
        let claim = self.claim("GET", target);
        self.go_with(&claim)
    }

    fn go_with(&mut self, claim: &Claim) -> Ticket {
        match self.ask(claim) {
            Ok(Granted::Now(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, target: &str) -> Waiter {
        let claim = self.claim("GET", target);
        self.wait_with(&claim)
    }

    fn wait_with(&mut self, claim: &Claim) -> Waiter {
        match self.ask(claim) {
            Ok(Granted::Later(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, ticket: Ticket, status: u16, fields: &[(&str, &str)]) {
        let lines: Lines<'_> =
            fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let response = Response { status, lines: &lines, body: b"", now: EPOCH };
        let observation = self.profile.read(&response);
        self.observe(ticket, &observation);
    }

    fn observe(&mut self, ticket: Ticket, observation: &Observation) {
        self.budgets.observe(ticket, observation, self.now);
    }

    /// Those who may go now.
    fn look(&mut self) -> Vec<Waiter> {
        let mut gone = Vec::new();
        while let Some((waiter, ticket)) = self.budgets.next(self.now) {
            self.gone.push((waiter, ticket));
            gone.push(waiter);
        }
        gone
    }

    fn ticket_of(&self, waiter: Waiter) -> Ticket {
        self.gone.iter().find(|(gone, _)| *gone == waiter).expect("it was let go").1
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
    }

    /// Milliseconds until it is worthwhile to look again.
    fn earliest_ms(&self) -> Option<u128> {
        self.budgets.earliest(self.now).map(|at| at.since(self.now).as_millis())
    }
}

fn fields<'a>(
    hash: &'a str,
    limit: &'a str,
    left: &'a str,
    after: &'a str,
) -> [(&'a str, &'a str); 5] {
    [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", hash),
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", left),
        ("x-ratelimit-reset-after", after),
    ]
}

const MESSAGES: &str = "/api/v10/channels/1/messages";

#[test]
fn one_probe_goes_and_its_header_fields_release_as_many_as_are_left() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let waiters: Vec<_> = (0..6).map(|_| desk.wait(MESSAGES)).collect();
    assert!(desk.look().is_empty());
    desk.answer(probe, 200, &fields("h", "5", "4", "2.000"));
    assert_eq!(desk.look(), waiters[..4], "in order, as many as are left");
    assert_eq!(desk.earliest_ms(), Some(2_001), "the reset, and what may be rounded off");
    desk.pass(2_001);
    assert_eq!(desk.look(), [waiters[4]], "five fit, but the four in flight may arrive late");
    for waiter in &waiters[..4] {
        let ticket = desk.ticket_of(*waiter);
        desk.answer(ticket, 200, &fields("h", "5", "0", "0.001"));
    }
    desk.pass(2);
    assert_eq!(desk.look(), [waiters[5]]);
}

#[test]
fn a_route_without_fields_opens_up_step_by_step() {
    let mut desk = Desk::discord();
    let probe = desk.go("/api/v10/gateway");
    let waiters: Vec<_> = (0..7).map(|_| desk.wait("/api/v10/gateway")).collect();
    desk.answer(probe, 200, &[("via", "1.1 google")]);
    assert_eq!(desk.look().len(), 3, "two, and one more for the first success");
    for waiter in &waiters[..3] {
        let ticket = desk.ticket_of(*waiter);
        desk.answer(ticket, 200, &[("via", "1.1 google")]);
    }
    assert_eq!(desk.look().len(), 4);
}

#[test]
fn routes_of_one_hash_share_a_bucket_and_a_channel_has_its_own() {
    let mut desk = Desk::discord();
    let first = desk.go("/api/v10/channels/1/messages/5");
    desk.answer(first, 200, &fields("shared", "2", "1", "5.000"));
    let second = desk.go("/api/v10/channels/1/pins");
    let waiter = desk.wait("/api/v10/channels/1/pins");
    desk.answer(second, 200, &fields("shared", "2", "0", "4.000"));
    assert!(desk.look().is_empty(), "merged: nothing is left for either route");
    assert!(matches!(desk.get("/api/v10/channels/1/messages/6"), Granted::Later(_)));
    assert!(matches!(desk.get("/api/v10/channels/2/pins"), Granted::Now(_)), "another channel");
    desk.pass(4_001);
    assert_eq!(desk.look()[0], waiter);
    let names: Vec<_> =
        desk.budgets.buckets(0, 10, desk.now).buckets.into_iter().map(|bucket| bucket.id).collect();
    assert!(names.contains(&"shared 1".to_owned()), "{names:?}");
}

#[test]
fn a_hash_that_changes_takes_the_route_with_it() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("old", "5", "4", "1.000"));
    let tickets: Vec<_> = (0..4).map(|_| desk.go(MESSAGES)).collect();
    let waiter = desk.wait(MESSAGES);
    desk.answer(tickets[0], 200, &fields("new", "10", "6", "3.000"));
    assert_eq!(desk.look(), [waiter], "six are left in the new one, three of them in flight");
    let page = desk.budgets.buckets(0, 10, desk.now);
    let new = page.buckets.iter().find(|bucket| bucket.id == "new 1").expect("it is there");
    assert_eq!((new.in_flight, new.dimensions[0].remaining), (4, 2));
    for ticket in &tickets[1..] {
        desk.answer(*ticket, 200, &fields("new", "10", "2", "2.900"));
    }
}

#[test]
fn a_sub_limit_blocks_its_lane_and_is_learned_from_the_second_refusal_on() {
    let mut desk = Desk::discord();
    let rename = Claim::new(desk.profile.route_with_body(
        "PATCH",
        "/api/v10/channels/1",
        br#"{"name": "x"}"#,
    ));
    let other = Claim::new(desk.profile.route_with_body(
        "PATCH",
        "/api/v10/channels/1",
        br#"{"nsfw": true}"#,
    ));
    let ok = |left| fields("patch", "5", left, "5.000");
    let refused = [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", "patch"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset-after", "5.000"),
        ("x-ratelimit-scope", "user"),
        ("retry-after", "600"),
    ];
    for left in ["4", "3"] {
        let ticket = desk.go_with(&rename);
        desk.answer(ticket, 200, &ok(left));
    }
    let third = desk.go_with(&rename);
    desk.answer(third, 429, &refused);
    let waiting = desk.wait_with(&rename);
    let allowed = desk.go_with(&other);
    desk.answer(allowed, 200, &ok("1"));
    let mut impatient = rename.clone();
    impatient = impatient.patience(Duration::from_secs(5));
    let refusal = desk.ask(&impatient).expect_err("ten minutes are too long");
    assert_eq!(refusal.reason, Reason::Patience);
    assert!(refusal.wait.is_some_and(|wait| wait > Duration::from_secs(590)));
    desk.pass(600_000);
    assert_eq!(desk.look(), [waiting], "one at a time from now on");
    let more: Vec<_> = (0..3).map(|_| desk.wait_with(&rename)).collect();
    let ticket = desk.ticket_of(waiting);
    desk.answer(ticket, 200, &ok("4"));
    assert_eq!(desk.look(), [more[0]]);
    let ticket = desk.ticket_of(more[0]);
    desk.answer(ticket, 200, &ok("3"));
    assert_eq!(desk.look(), [more[1]]);
    let ticket = desk.ticket_of(more[1]);
    desk.answer(ticket, 429, &refused);
    desk.pass(600_000);
    // Two in ten minutes, it has now been told twice: the third waits without being refused.
    let fourth = desk.wait_with(&rename);
    let fifth = desk.wait_with(&rename);
    assert_eq!(desk.look(), [more[2]]);
    let ticket = desk.ticket_of(more[2]);
    desk.answer(ticket, 200, &ok("4"));
    assert_eq!(desk.look(), [fourth]);
    let ticket = desk.ticket_of(fourth);
    desk.answer(ticket, 200, &ok("3"));
    assert!(desk.look().is_empty(), "the lane knows its limit");
    desk.pass(600_000);
    assert_eq!(desk.look(), [fifth]);
}

#[test]
fn a_shared_refusal_blocks_its_own_route_only() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "5", "4", "5.000"));
    let second = desk.go(MESSAGES);
    let shared = [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", "h"),
        ("x-ratelimit-scope", "shared"),
        ("retry-after", "30"),
    ];
    desk.answer(second, 429, &shared);
    let blocked = desk.wait(MESSAGES);
    let pins = desk.go("/api/v10/channels/1/pins");
    desk.answer(pins, 200, &fields("h", "5", "2", "4.000"));
    assert!(matches!(desk.get("/api/v10/channels/1/pins"), Granted::Now(_)));
    assert!(desk.look().is_empty());
    desk.pass(30_000);
    assert_eq!(desk.look(), [blocked]);
}

#[test]
fn a_global_refusal_stops_everything_but_what_is_exempt() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 429, &[("via", "x"), ("x-ratelimit-global", "true"), ("retry-after", "7")]);
    let waiter = desk.wait("/api/v10/guilds/2");
    let callback = desk.claim("POST", "/api/v10/interactions/1/token/callback");
    assert!(matches!(desk.ask(&callback), Ok(Granted::Now(_))));
    let followup = desk.claim("POST", "/api/v10/webhooks/9/aW50ZXJhY3Rpb246MTE4");
    assert!(matches!(desk.ask(&followup), Ok(Granted::Now(_))));
    assert_eq!(desk.earliest_ms(), Some(7_000));
    desk.pass(7_000);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn the_global_limit_is_taken_when_a_request_leaves_not_when_it_asks() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "1", "0", "3.000"));
    for channel in 0..49 {
        let _ = desk.go(&format!("/api/v10/channels/{}/messages", channel + 100));
    }
    let held = desk.wait(MESSAGES);
    let other = desk.wait("/api/v10/channels/999/messages");
    desk.pass(1_100);
    assert_eq!(desk.look(), [other], "the fifty have left the window, the bucket is spent still");
    desk.pass(1_901);
    assert_eq!(desk.look(), [held]);
}

#[test]
fn a_late_answer_of_an_old_window_neither_refills_nor_shortens_the_new_one() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "3", "2", "1.000"));
    let late = desk.go(MESSAGES);
    desk.pass(1_001);
    let new = desk.go(MESSAGES);
    desk.answer(new, 200, &fields("h", "3", "2", "1.000"));
    // It was counted at the end of the old window, and 40 ms were left then.
    desk.answer(late, 200, &fields("h", "3", "0", "0.040"));
    assert!(matches!(desk.get(MESSAGES), Granted::Later(_)));
    desk.pass(41);
    assert_eq!(desk.look().len(), 1);
    let _ = desk.go(MESSAGES);
    assert!(matches!(desk.get(MESSAGES), Granted::Later(_)), "two were left, not three");
    assert_eq!(desk.earliest_ms(), Some(960));
}

#[test]
fn a_reset_that_moves_is_a_sliding_window_and_gives_back_unit_by_unit() {
    let mut desk = Desk::discord();
    for (left, after) in [("4", "1.000"), ("3", "1.990"), ("2", "2.980")] {
        let ticket = desk.go(MESSAGES);
        desk.pass(10);
        desk.answer(ticket, 200, &fields("h", "5", left, after));
    }
    let view = &desk.budgets.buckets(0, 10, desk.now).buckets[0];
    assert_eq!(view.dimensions[0].sliding, Some(true));
    let ticket = desk.go(MESSAGES);
    desk.answer(ticket, 200, &fields("h", "5", "1", "3.970"));
    let ticket = desk.go(MESSAGES);
    desk.answer(ticket, 200, &fields("h", "5", "0", "4.960"));
    let waiter = desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(992), "a fifth of the time until all are back");
    desk.pass(993);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_dropped_probe_makes_room_for_the_next() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    desk.budgets.abandon(probe, desk.now);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_probe_that_hangs_keeps_the_others_for_one_lease_only() {
    let mut desk = Desk::discord();
    let _hangs = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(Settings::default().lease.as_millis()));
    desk.pass(10_000);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_request_that_was_never_sent_gives_its_unit_back() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "2", "1", "5.000"));
    let unsent = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    desk.budgets.cancel(unsent, desk.now);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn clients_take_turns_by_weight_and_one_client_is_served_in_order() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let mut whose = HashMap::new();
    for (client, weight) in [(1, 1), (2, 3)] {
        for _ in 0..8 {
            let claim = desk.claim("GET", MESSAGES).client(client).weight(weight);
            whose.insert(desk.wait_with(&claim), client);
        }
    }
    desk.answer(probe, 200, &fields("h", "9", "8", "5.000"));
    let gone = desk.look();
    let heavy = gone.iter().filter(|waiter| whose[*waiter] == 2).count();
    assert_eq!((gone.len(), heavy), (8, 6), "three to one");
    for client in [1, 2] {
        let own: Vec<_> = gone.iter().filter(|waiter| whose[*waiter] == client).collect();
        assert!(own.is_sorted());
    }
}

#[test]
fn a_higher_priority_goes_first_and_a_lower_one_is_not_starved() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let low = desk.claim("GET", MESSAGES).priority(Priority::Low);
    let low = desk.wait_with(&low);
    let high = desk.claim("GET", MESSAGES).priority(Priority::High);
    let high: Vec<_> = (0..20).map(|_| desk.wait_with(&high)).collect();
    desk.answer(probe, 200, &fields("h", "50", "17", "5.000"));
    let gone = desk.look();
    assert_eq!(gone[..15], high[..15]);
    assert_eq!(gone[15], low, "fifteen may overtake it");
    assert_eq!(gone[16], high[15]);
}

#[test]
fn who_cannot_wait_long_enough_is_told_how_long_it_takes() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "1", "0", "5.000"));
    for _ in 0..3 {
        desk.wait(MESSAGES);
    }
    let claim = desk.claim("GET", MESSAGES).patience(Duration::from_secs(10));
    let refusal = desk.ask(&claim).expect_err("three are ahead of it");
    assert_eq!(refusal.reason, Reason::Patience);
    let wait = refusal.wait.expect("a wait helps");
    assert!((19_900..20_200).contains(&wait.as_millis()), "{wait:?}");
    let patient = desk.claim("GET", MESSAGES).patience(Duration::from_secs(21));
    desk.wait_with(&patient);
    desk.pass(21_000);
    desk.look();
    let (_, refusal) = desk.budgets.expired(desk.now).expect("its time is over");
    assert_eq!(refusal.reason, Reason::Patience);
}

#[test]
fn queues_are_bounded_in_number_and_bytes_and_can_be_drained() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let settings = Settings { queue_max: 3, queue_bytes_max: 100, ..Settings::default() };
    let mut desk = Desk::of(Arc::clone(&profile));
    desk.budgets = Budgets::new(profile, settings);
    let _probe = desk.go(MESSAGES);
    let heavy = desk.claim("GET", MESSAGES).bytes(60);
    desk.wait_with(&heavy);
    assert_eq!(desk.ask(&heavy).expect_err("120 bytes").reason, Reason::BytesFull);
    desk.wait(MESSAGES);
    desk.wait(MESSAGES);
    let claim = desk.claim("GET", MESSAGES);
    assert_eq!(desk.ask(&claim).expect_err("a fourth").reason, Reason::QueueFull);
    let bucket = desk.budgets.buckets(0, 1, desk.now).buckets[0].id.clone();
    assert_eq!(desk.budgets.drain(&bucket, desk.now).len(), 3);
    assert_eq!(desk.budgets.queued(), 0);
    desk.wait_with(&heavy);
}

#[test]
fn an_unlocked_bucket_sends_a_probe() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "5", "0", "3600"));
    let waiter = desk.wait(MESSAGES);
    desk.wait(MESSAGES);
    assert!(!desk.budgets.unlock("nothing", desk.now));
    assert!(desk.budgets.unlock("h 1", desk.now));
    assert_eq!(desk.look(), [waiter], "one alone");
}

#[test]
fn a_bucket_shows_what_it_knows() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "5", "4", "5.000"));
    let _flying = desk.go(MESSAGES);
    let other = desk.go(MESSAGES);
    // Somebody else took two.
    desk.answer(other, 200, &fields("h", "5", "0", "4.900"));
    desk.wait(MESSAGES);
    let page = desk.budgets.buckets(0, 10, desk.now);
    let bucket = &page.buckets[0];
    assert_eq!((bucket.id.as_str(), bucket.knowledge), ("h 1", Knowledge::Known));
    assert_eq!((bucket.in_flight, bucket.queued), (1, 1));
    assert_eq!((bucket.dimensions[0].limit, bucket.dimensions[0].remaining), (5, 0));
    assert_eq!(bucket.divergence, -2);
    assert!(bucket.wait > Duration::from_millis(4_800), "{:?}", bucket.wait);
    assert_eq!(page.next, None);
}

#[test]
fn clocks_that_differ_do_not_spoil_an_absolute_reset() {
    let mut desk = Desk::of(Profile::builtin("x").expect("it is shipped"));
    let claim = desk.claim("GET", "/2/users/1/tweets");
    let ticket = desk.go_with(&claim);
    // The upstream's clock is an hour ahead of the reader's, and its window ends in 100 s.
    let ahead = EPOCH.as_secs() + 3_600;
    let reset = (ahead + 100).to_string();
    let answer = [
        ("date", "Sun, 15 Nov 2026 17:00:00 GMT"),
        ("x-rate-limit-limit", "15"),
        ("x-rate-limit-remaining", "0"),
        ("x-rate-limit-reset", reset.as_str()),
    ];
    desk.answer(ticket, 200, &answer);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(101_000), "and the second that may be rounded off");
}

#[test]
fn a_refill_that_nobody_tells_is_modelled() {
    let mut desk = Desk::of(Profile::builtin("heroku").expect("it is shipped"));
    let claim = desk.claim("GET", "/apps");
    let ticket = desk.go_with(&claim);
    desk.answer(ticket, 200, &[("ratelimit-remaining", "0")]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(800), "4,500 an hour are one in 0.8 s");
    let mut desk = Desk::of(Profile::builtin("shopify").expect("it is shipped"));
    let claim = desk.claim("GET", "/admin/products.json");
    let ticket = desk.go_with(&claim);
    desk.answer(ticket, 200, &[("x-shopify-shop-api-call-limit", "40/40")]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(500));
}

#[test]
fn a_limit_that_nobody_tells_is_counted_here() {
    let mut desk = Desk::of(Profile::builtin("stripe").expect("it is shipped"));
    let claim = desk.claim("GET", "/v1/charges");
    let mut open = desk.go_with(&claim);
    for sent in 1..25 {
        desk.answer(open, 200, &[]);
        open = match desk.ask(&claim) {
            Ok(Granted::Now(ticket)) => ticket,
            other => panic!("{sent}: {other:?}"),
        };
    }
    desk.answer(open, 200, &[]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(1_100), "25 a second, and 100 ms for the way");
}

#[test]
fn lies_and_nonsense_end_in_waits_with_a_bound() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 429, &[("retry-after", "99999999999"), ("x-ratelimit-scope", "user")]);
    desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(86_400_000));
    let mut desk = Desk::discord();
    let mut ticket = desk.go(MESSAGES);
    let mut waits = Vec::new();
    for _ in 0..12 {
        desk.answer(ticket, 429, &[("via", "x"), ("x-ratelimit-scope", "user")]);
        let waiter = desk.wait(MESSAGES);
        let wait = desk.earliest_ms().expect("it waits for time, not for ever");
        waits.push(wait);
        desk.pass(u64::try_from(wait).expect("short"));
        assert_eq!(desk.look(), [waiter]);
        ticket = desk.ticket_of(waiter);
    }
    assert!(waits.is_sorted() && waits[0] == 1_000 && waits[11] == 300_000, "{waits:?}");
}

#[test]
fn a_table_that_is_full_forgets_what_says_nothing_and_forgives_nobody() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let mut desk = Desk::of(Arc::clone(&profile));
    desk.budgets = Budgets::new(profile, Settings { buckets_max: 4, ..Settings::default() });
    for channel in 0..3 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "1", "0", "3600"));
        desk.pass(2_000);
    }
    for channel in 10..30 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(2_000);
    }
    assert!(desk.budgets.bucket_count() <= 4);
    for channel in 0..3 {
        let target = format!("/api/v10/channels/{channel}/messages");
        assert!(matches!(desk.get(&target), Granted::Later(_)), "{channel} is spent still");
    }
    let ticket = desk.go("/api/v10/channels/40/messages");
    let refusal = desk.ask(&desk.claim("GET", "/api/v10/channels/41/messages"));
    assert_eq!(refusal.expect_err("all four are in use").reason, Reason::BucketsFull);
    desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
}

#[test]
fn idle_buckets_are_forgotten() {
    let mut desk = Desk::discord();
    for channel in 0..1_000 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(50);
    }
    assert_eq!(desk.budgets.bucket_count(), 1_000);
    desk.pass(3_600_000);
    for _ in 0..600 {
        let ticket = desk.go(MESSAGES);
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(2_000);
    }
    assert_eq!(desk.budgets.bucket_count(), 1);
}

#[test]
fn a_route_that_the_upstream_counts_in_another_class_than_the_profile_waits_for_that_one() {
    let mut desk = Desk::of(Profile::builtin("github").expect("it is shipped"));
    let spent = |resource: &'static str| {
        [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1794758460"),
            ("x-ratelimit-resource", resource),
        ]
    };
    // The profile takes it for `core`; GitHub counts it apart.
    let sbom = "/repos/a/b/dependency-graph/sbom";
    let first = desk.go(sbom);
    desk.answer(first, 200, &spent("dependency_sbom"));
    desk.wait(sbom);
    let other = desk.go("/repos/a/b/issues");
    desk.answer(
        other,
        200,
        &[
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4999"),
            ("x-ratelimit-reset", "1794758460"),
            ("x-ratelimit-resource", "core"),
        ],
    );
    let _more = [desk.go("/repos/a/b/issues"), desk.go("/repos/a/b/pulls")];
    desk.wait(sbom);
}
