use super::*;
use crate::own_quotas::OwnQuotas;

fn rules(options: RuleOptions, lists: Lists, shadow: bool) -> Rules {
    let policy = Policy::parse("api", "10/s").unwrap();
    let rule = Rule::new(policy, Arc::default(), options);
    Rules::new(vec![rule], Vec::new(), lists, shadow)
}

fn treatment(rules: &Rules, key: &str) -> Treatment {
    rules.ask_named(b"api", key.as_bytes(), Cost::ONE).unwrap().treatment
}

#[test]
fn a_key_may_have_its_own_quota() {
    let (pattern, policy) = (Pattern::new("vip-*"), Policy::parse("api", "99/s").unwrap());
    let own = vec![OwnLimit { place: ConfigLine::default(), pattern, policy, spacing: None }];
    let rules = rules(RuleOptions { own, ..RuleOptions::default() }, Lists::default(), false);
    let limit = |key: &str| {
        let ask = rules.ask_named(b"api", key.as_bytes(), Cost::ONE).unwrap();
        ask.charge.policy.algorithm().limit()
    };
    assert_eq!((limit("ada"), limit("vip-1")), (10, 99));
}

#[test]
fn an_operators_word_holds_for_the_keys_of_descriptors_too() {
    let limit = Limit::new(Some(Policy::parse("login", "5/m").unwrap()), Arc::default());
    let policy = limit.policy.as_ref().unwrap();
    let (whole_key, key) = (&b"edge\x1fuser\x1fada\x1f"[..], Key::new(b"digest").unwrap());
    let source = Source::descriptor(&limit, policy, whole_key, &limit.tally);
    let rules = rules(RuleOptions::default(), Lists::default(), false);
    let own = OwnQuotas::new(&rules, 0, vec![OwnQuotas::a_ban_of(whole_key)]);
    let banned = rules.with_own_quotas(Arc::new(own));
    assert_eq!(banned.ask(source, key, Cost::ONE).treatment, Treatment::Ban);
}

#[test]
fn a_ban_beats_an_exemption_and_both_beat_shadow() {
    let lists = Lists {
        unlimited: ["good*", "evil-1"].into_iter().collect(),
        banned: ["evil*"].into_iter().collect(),
    };
    let rules = rules(RuleOptions::default(), lists, true);
    assert_eq!(treatment(&rules, "evil-1"), Treatment::Ban);
    assert_eq!(treatment(&rules, "good"), Treatment::Exempt);
    assert_eq!(treatment(&rules, "ada"), Treatment::Shadow);
}

#[test]
fn a_policys_own_lists_come_first() {
    let own = Lists { unlimited: ["evil"].into_iter().collect(), ..Lists::default() };
    let global = Lists { banned: ["evil"].into_iter().collect(), ..Lists::default() };
    let rules = rules(RuleOptions { lists: own, ..RuleOptions::default() }, global, false);
    assert_eq!(treatment(&rules, "evil"), Treatment::Exempt);
}

#[test]
fn what_is_no_policy_or_no_key_is_refused() {
    let rules = rules(RuleOptions::default(), Lists::default(), false);
    let refused = |policy: &[u8], key: &[u8]| rules.ask_named(policy, key, Cost::ONE).unwrap_err();
    assert_eq!(refused(b"web", b"k"), Unaskable::UnknownPolicy);
    assert_eq!(refused(b"\xff", b"k"), Unaskable::UnknownPolicy);
    assert_eq!(refused(b"api", b""), Unaskable::Key(KeyError::Empty));
    assert_eq!(refused(b"api", &[0; 65_537]), Unaskable::Key(KeyError::TooLong));
}
