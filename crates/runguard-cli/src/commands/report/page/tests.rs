use super::*;
use runguard_guards::Policy;
use runguard_insight::insight::advice::{Facts, advise};
use runguard_insight::insight::digest::Savings;
use runguard_insight::insight::{
    Action, BudgetSeen, Chain, Counted, Entity, Handoffs, Outcomes, ReasonCount, Saves, Series, SubjectCount, Totals,
};

const MAX_PAGE: usize = 300 * 1024;
const HOSTILE: &str = "</style><script>alert(1)</script>\" onload='x' \u{202e}evil&amp;";

/// A week in which everything happened, every name being `name` and a number.
fn week(name: &dyn Fn(&str, usize) -> String) -> Overview {
    let hours = 168;
    let wave = |base: u64, index: usize| base + (index as u64 * 7919 % 40) + if index % 24 > 7 { base } else { 0 };
    let list = |kind: &str, count: usize| (0..count).map(|number| name(kind, number)).collect::<Vec<_>>();
    let outcomes = |base: u64, from: usize| Outcomes {
        allowed: (0..hours).map(|index| wave(base, index)).collect(),
        would_block: (0..hours).map(|index| wave(base, index) / 20).collect(),
        blocked: (0..hours).map(|index| if index >= from { wave(base, index) / 6 } else { 0 }).collect(),
    };
    let reason = |guard: &str, reason: &str, blocked| ReasonCount {
        guard: guard.into(),
        reason: reason.into(),
        blocked,
        would_block: blocked / 9,
        subjects: (0..4).map(|number| Counted { subject: name("flow", number), count: blocked / (number as u64 * 4 + 1) }).collect(),
        sessions: list("session", 3),
    };
    Overview {
        since_ms: 1_800_000_000_000,
        until_ms: 1_800_000_000_000 + hours as i64 * 3_600_000,
        bucket_seconds: 3600,
        totals: Totals {
            decisions: 48_230,
            allowed: 43_000,
            would_block: 830,
            blocked: 4400,
            operations_saved: 6210,
            credits_saved: 6210.0,
            usd_saved: 93.15,
        },
        series: Series {
            starts_ms: (0..hours as i64).map(|hour| 1_800_000_000_000 + hour * 3_600_000).collect(),
            by_guard: BTreeMap::from([
                ("ai_task_retry".to_owned(), outcomes(60, 0)),
                ("handoff".to_owned(), outcomes(30, 90)),
                ("kb_requery".to_owned(), outcomes(45, 0)),
            ]),
        },
        reasons: vec![
            reason("ai_task_retry", "input_missing_prerequisite_signal", 1900),
            reason("kb_requery", "low_confidence_re_query_blocked", 1220),
            reason("handoff", "cycle_detected", 640),
            reason("ai_task_retry", "retry_cap_reached", 410),
            reason("agent_action", "consecutive_same_action_spiral", 120),
        ],
        subjects: (0..4)
            .map(|number| SubjectCount {
                guard: "ai_task_retry".into(),
                subject: name("flow", number),
                allowed: 900,
                would_block: 0,
                blocked: 300,
                sessions: list("session", 3),
            })
            .collect(),
        handoffs: Handoffs {
            edges: Vec::new(),
            chains: (0..6)
                .map(|number| Chain {
                    chain: ["front", "billing", "returns", "billing"].map(|bot| name(bot, number)).to_vec(),
                    count: 90 / (number as u64 + 1),
                    sessions: list("session", 3),
                })
                .collect(),
        },
        topics: (0..50)
            .map(|number| Topic {
                topic: name("topic", number),
                label: name("how do I return a gift without a receipt", number),
                queries: 300 / (number as u64 + 1) + 3,
                blocked: 40 / (number as u64 + 1),
                best_confidence: 0.3 + number as f64 / 100.0,
                mean_confidence: 0.2,
                histogram: [3, 9, 14, 8, 2, if number > 3 { 9 } else { 0 }, if number > 3 { 20 } else { 0 }, 0, 0, 0],
                is_gap: number <= 3,
                phrasings: 1 + number as u64 % 3,
                low_share: 0.124,
                sessions: list("session", 3),
                ..Topic::default()
            })
            .collect(),
        actions: ["search_orders", "read_page", "refund", "escalate"]
            .iter()
            .enumerate()
            .map(|(number, action)| Action { action: name(action, number), runs: 900 / (number as u64 * 3 + 1), blocked: 30, share: 0.0 })
            .collect(),
        action_skew: 0.66,
        endpoints: (0..5)
            .map(|number| Endpoint {
                endpoint: name("https://orders.example/v2", number),
                calls: 4000,
                failures: 30 * (number as u64 + 1),
                failure_rate: 0.0,
                mean_ms: Some(180.4 * (number as f64 + 1.0)),
                max_ms: Some(2400.0),
                blocked: 9,
                failures_over_time: (0..hours).map(|index| (index * (number + 1) / 60) as u64).collect(),
            })
            .collect(),
        entities: vec![Entity { entity: name("date", 0), hints: 120, blocked: 3, sessions: list("session", 3) }],
        budgets: vec![BudgetSeen {
            budget: name("run", 0),
            spent_usd: 4.91,
            limit_usd: Some(5.0),
            spent_tokens: 91_000,
            limit_tokens: None,
            refused: 31,
        }],
        ..Overview::default()
    }
}

fn advice_on(overview: &Overview) -> Vec<Insight> {
    advise(overview, &Facts { policy: &Policy::default(), savings: Savings { usd_per_operation: 0.015, ..Savings::default() } })
}

fn used(name: &dyn Fn(&str, usize) -> String) -> Consumption {
    let days =
        (0..40).map(|number| Day { day: format!("2027-01-{number:02}"), bot: name("bot", number), operations: 1234, ..Day::default() });
    let steps = (0..40).map(|number| Step { step: name("step", number), bot: name("bot", number), operations: 40, ..Step::default() });
    let weeks = [None, Some(name("bot", 1))].map(|bot| Week { week: "2027-01-11".into(), bot, change: Some(0.25), ..Week::default() });
    Consumption { days: days.collect(), steps: steps.collect(), weeks: weeks.to_vec(), ..Consumption::default() }
}

fn made(name: &dyn Fn(&str, usize) -> String) -> String {
    let overview = week(name);
    page(&overview, &advice_on(&overview), &used(name), "http://127.0.0.1:8100")
}

#[test]
fn a_week_is_shown_whole() {
    let page = made(&|kind, number| format!("{kind} {number}"));
    for said in [
        "What to do",
        "Decisions over time",
        "Why steps were blocked",
        "Saved, by guard",
        "Handoff chains",
        "Knowledge base topics",
        "Endpoints",
        "Budgets",
        "Consumption",
        "1,234",
        "+25 %",
        "48,230",
        "93.15",
        "2027-01-15 08:00 to 2027-01-22 08:00",
        "class=\"badge\">gap",
        "href=\"http://127.0.0.1:8100/?view=session&amp;session=session%200\"",
        "<code><bdi>guards.ai_task_retry.patterns.&quot;flow 0&quot;</bdi></code>",
    ] {
        assert!(page.contains(said), "{said} is missing");
    }
    assert!(page.len() < MAX_PAGE, "{}", page.len());
    // The picture that people look at while working on the page.
    if let Some(file) = std::env::var_os("REPORT_SAMPLE") {
        std::fs::write(file, page).unwrap();
    }
}

#[test]
fn an_empty_time_is_a_page_too() {
    let page = page(&Overview::default(), &[], &Consumption::default(), "http://127.0.0.1:8100");
    assert!(page.contains("Nothing stands out") && page.ends_with("</html>\n") && !page.contains("Endpoints"));
}

/// The tags of a page, without their attributes, and nothing that closes wrongly.
fn tags(page: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut all = Vec::new();
    for piece in page.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap();
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name.clone()));
        } else if !tag.ends_with('/') && !["meta", "br", "!doctype"].contains(&name.as_str()) {
            open.push(name.clone());
        }
        all.push(name);
    }
    assert_eq!(open, Vec::<String>::new());
    all
}

#[test]
fn hostile_names_are_only_text() {
    let hostile = made(&|kind, number| format!("{HOSTILE}{kind} {number}"));
    let harmless = made(&|kind, number| format!("{}{kind} {number}", "x".repeat(HOSTILE.chars().count())));
    // The same tags in the same order: nothing a name says becomes markup. (Long links are left out of both.)
    let without_links = |page: &str| tags(page).into_iter().filter(|tag| tag != "a").collect::<Vec<_>>();
    assert_eq!(without_links(&hostile), without_links(&harmless));
    assert!(!tags(&hostile).contains(&"script".to_owned()));
    assert!(!hostile.contains('\u{202e}') && !hostile.contains("<script") && !hostile.contains("onload='"));
    assert!(hostile.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39; ·evil&amp;amp;"));
}

#[test]
fn the_largest_page_stays_small() {
    let page = made(&|kind, number| format!("{kind}{number}{}", "\u{1f9ff}'".repeat(127)));
    assert!(page.len() <= MAX_PAGE, "{}", page.len());
    let insight = Insight {
        id: "x".into(),
        title: "'".repeat(5000),
        advice: "'".repeat(5000),
        severity: Severity::Low,
        score: 0.0,
        guard: None,
        subject: None,
        setting: None,
        evidence: BTreeMap::from([("a".to_owned(), json!("'".repeat(5000)))]),
        sessions: vec!["x".repeat(256); 5],
        saves: Saves::default(),
    };
    assert!(super::page(&Overview::default(), &vec![insight; 25], &Consumption::default(), "http://h").len() <= MAX_PAGE);
}

#[test]
fn links_lead_only_to_the_web() {
    let links = |service| Links { service, tenant: Some("a&b") }.session("s/1\"");
    assert_eq!(links("http://h"), "<a href=\"http://h/?view=session&amp;session=s%2F1%22&amp;tenant=a%26b\"><bdi>s/1&quot;</bdi></a>");
    assert_eq!(links("javascript:alert(1)//"), "<bdi>s/1&quot;</bdi>");
}

#[test]
fn numbers_read_well() {
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([1, 2, 9, 10, 47, 101, 99_999].map(rounded_up), [2, 2, 10, 20, 60, 200, 100_000]);
    assert_eq!(thinned(&[1, 2, 3, 4, 5], 2), [6, 9]);
    assert_eq!(thinned(&[], 2), Vec::<u64>::new());
}
