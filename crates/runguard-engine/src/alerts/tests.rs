use super::*;
use crate::settings::check_text;

fn read(text: &str) -> Result<AlertSettings, String> {
    check_text(Path::new("s.toml"), text).map(|loaded| loaded.settings.alerts).map_err(|error| error.to_string())
}

const TARGET: &str = "[[alerts.target]]\nname = \"ops\"\nkind = \"slack\"\nurl = \"https://hooks.slack.com/x\"\n";

#[test]
fn one_target_is_enough() {
    let settings = read(TARGET).unwrap();
    let names: Vec<String> = settings.rules().into_iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["circuit_trip", "blocks", "budget", "fallback"]);
    assert!(settings.is_on() && !read("").unwrap().is_on());
    assert!(!read(&format!("[alerts]\nenabled = false\n{TARGET}")).unwrap().is_on());
}

#[test]
fn own_rules_are_added_to_the_usual_ones() {
    let names = |text: &str| read(text).unwrap().rules().into_iter().map(|rule| (rule.name, rule.count)).collect::<Vec<_>>();
    let own = "[[alerts.rule]]\nname = \"spike\"\nwhen = \"spike\"\n[[alerts.rule]]\nname = \"blocks\"\nwhen = \"blocks\"\ncount = 7\n";
    let found = names(&format!("{TARGET}{own}"));
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["circuit_trip", "budget", "fallback", "spike", "blocks"]);
    assert_eq!(found[4].1, 7, "one's own stands in the place of the usual one");
    assert_eq!(names(&format!("[alerts]\ndefault_rules = false\n{TARGET}{own}")).len(), 2);
    assert!(names(&format!("[alerts]\ndefault_rules = false\n{TARGET}")).is_empty());
}

#[test]
fn rules_are_read_with_their_thresholds() {
    let text = format!(
        "{TARGET}[[alerts.rule]]\nname = \"a\"\nwhen = \"blocks\"\nreason = \"cycle_detected\"\ncount = 7\nwindow = \"10m\"\ncooldown = \"1h\"\nto = [\"ops\"]\nseverity = \"critical\"\nper = [\"subject\"]\n"
    );
    let rule = &read(&text).unwrap().rule[0];
    assert_eq!((rule.count, rule.window, rule.cooldown), (7, Span::from_seconds(600), Span::from_seconds(3600)));
    assert_eq!((rule.severity, rule.per.as_slice()), (Some(Severity::Critical), &[alert::Dimension::Subject][..]));
}

#[test]
fn errors_name_the_line_in_the_list() {
    for (text, says) in [
        (
            format!("{TARGET}[[alerts.rule]]\nname = \"a\"\nwhen = \"blocks\"\ncount = 0\n"),
            "s.toml:8: `alerts.rule.0.count`: must be from 1",
        ),
        (
            format!("{TARGET}[[alerts.rule]]\nname = \"a\"\nwhen = \"blocks\"\ncuont = 1\n"),
            "s.toml:8: `alerts.rule.0.cuont`: unknown key; did you mean `count`?",
        ),
        (format!("{TARGET}[[alerts.rule]]\nname = \"a\"\nwhen = \"trouble\"\n"), "alerts.rule.0.when"),
        (format!("{TARGET}[[alerts.rule]]\nname = \"a\"\nwhen = \"blocks\"\nto = [\"opps\"]\n"), "there is no target `opps`"),
        (format!("{TARGET}{TARGET}"), "s.toml:6: `alerts.target.1.name`: `ops` is there twice"),
        ("[[alerts.target]]\nname = \"a\"\nurl = \"https://a.example\"\n".into(), "`kind` is missing"),
        ("[[alerts.target]]\nname = \"a\"\nkind = \"pager\"\n".into(), "alerts.target.0.kind"),
        ("[[alerts.target]]\nname = \"a\"\nkind = \"webhook\"\nurl = \"https://a.example\"\n".into(), "secret_env"),
        ("[[alerts.target]]\nname = \"a\"\nkind = \"pagerduty\"\n".into(), "routing_key_env"),
        (
            "[[alerts.target]]\nname = \"a\"\nkind = \"slack\"\nurl = \"http://a.example\"\n".into(),
            "s.toml:4: `alerts.target.0.url`: must begin with https",
        ),
        ("[alerts]\ntarget = 1\n".into(), "write [[alerts.target]]"),
        ("[alerts]\nmax_attempts = 0\n".into(), "max_attempts"),
        ("[alerts]\ntarget = [1, { name = \"a\" }]\n".into(), "do not mix"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(says), "{text}\n{error}");
    }
}
