use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollway_upstream::profile::Profile;

use crate::world::{Alone, Counted, Limit, Outcomes, Plan, Shape, World};

pub(crate) fn profile(text: &str) -> Arc<Profile> {
    Arc::new(Profile::parse(text).expect("a valid profile"))
}

pub(crate) const ONE: &str = "name = 'one'\n[[dimensions]]\nname = 'requests'\nremaining = 'r'\n";
pub(crate) const TWO: &str = "name = 'two'\n[[dimensions]]\nname = 'requests'\nremaining = 'r'\n\
    [[dimensions]]\nname = 'tokens'\nremaining = 't'\n";

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(Shape::Anchored), Just(Shape::Grid), Just(Shape::Sliding)]
}

pub(crate) fn limit(units: std::ops::Range<u64>) -> impl Strategy<Value = Limit> {
    (shape(), units, 20u64..3_000).prop_map(|(shape, units, window_ms)| Limit {
        shape,
        units,
        window: Duration::from_millis(window_ms),
    })
}

pub(crate) fn plan(routes: usize) -> impl Strategy<Value = Plan> {
    let travel = prop_oneof![0u64..20, 0u64..400, Just(0)];
    (0u64..3_000, 0..routes, travel.clone(), travel, 1u32..5).prop_map(
        |(at_ms, route, there_ms, back_ms, cost)| Plan {
            at_ms,
            route,
            there_ms,
            back_ms,
            lost: false,
            cost,
        },
    )
}

fn sent_in_order_asked(plans: &[Plan], outcomes: &Outcomes, routes: usize) -> bool {
    (0..routes).all(|route| {
        let mut asked: Vec<usize> = (0..plans.len()).filter(|i| plans[*i].route == route).collect();
        asked.sort_by_key(|i| plans[*i].at_ms);
        let sent = outcomes.sent.iter().map(|(index, _)| *index);
        sent.filter(|index| plans[*index].route == route).eq(asked)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Answers arrive late, early and out of order; the upstream refuses none, nobody waits for
    /// ever, and each bucket is served in order of arrival.
    #[test]
    fn a_truthful_upstream_refuses_nothing(
        limits in prop::collection::vec(limit(1..12), 3),
        plans in prop::collection::vec(plan(3), 1..60),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let outcomes = World::new(Alone::new(profile(ONE)), limits).run(&plans, 100_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
        prop_assert_eq!(outcomes.sent.len(), plans.len());
        prop_assert!(sent_in_order_asked(&plans, &outcomes, 3));
    }

    /// The first answer names the buckets of all resources of a route, while requests to others of
    /// them are under way.
    #[test]
    fn a_name_that_comes_with_the_first_answer_costs_no_refusal(
        limits in prop::collection::vec(limit(1..12), 4),
        plans in prop::collection::vec(plan(4), 1..60),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let world = World::new(Alone::new(profile(ONE)), limits).counting(Counted::Majors);
        let outcomes = world.run(&plans, 100_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
        prop_assert!(sent_in_order_asked(&plans, &outcomes, 4));
    }

    #[test]
    fn several_dimensions_are_obeyed_at_once(
        requests in limit(1..12),
        tokens in limit(5..40),
        plans in prop::collection::vec(plan(1), 1..60),
    ) {
        let world = World::new(Alone::new(profile(TWO)), vec![vec![requests, tokens]]);
        let outcomes = world.run(&plans, 100_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }

    /// A lost answer costs at most a refusal of its own, and stops nobody.
    #[test]
    fn lost_answers_neither_stop_nor_flood(
        limits in prop::collection::vec(limit(1..12), 2),
        mut plans in prop::collection::vec(plan(2), 1..60),
        lost in prop::collection::vec(any::<bool>(), 60),
    ) {
        for (plan, lost) in plans.iter_mut().zip(lost) {
            plan.lost = lost;
        }
        let losses = plans.iter().filter(|plan| plan.lost).count();
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let outcomes = World::new(Alone::new(profile(ONE)), limits).run(&plans, 200_000);
        prop_assert_eq!(outcomes.unanswered, 0);
        prop_assert!(outcomes.refused <= losses, "{} refused", outcomes.refused);
    }

    /// However the upstream's windows lie, requests that leave together do not arrive as too many.
    #[test]
    fn the_global_limit_holds_against_window_edges(
        mut plans in prop::collection::vec(plan(40), 1..200),
        jitters in prop::collection::vec(0u64..100, 200),
    ) {
        for (plan, jitter) in plans.iter_mut().zip(jitters) {
            plan.there_ms = 30 + jitter;
            plan.at_ms /= 3;
        }
        let text = format!("{ONE}[global]\nlimit = '50/1s'\njitter = '100ms'\n");
        let free = Limit { shape: Shape::Grid, units: 1_000, window: Duration::from_secs(1) };
        let world = World::new(Alone::new(profile(&text)), vec![vec![free]; 40]);
        let outcomes = world.with_global(50, Duration::from_secs(1)).run(&plans, 100_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }
}

fn cases() -> u32 {
    if std::env::var_os("TOLLWAY_FULL").is_some() { 5_000 } else { 500 }
}
