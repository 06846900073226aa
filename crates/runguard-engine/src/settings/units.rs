//! Which settings are lengths of time: their types say so, and nothing else has to.

use super::{AlertSettings, GatewaySettings, LogSettings, ServerSettings, StoreSettings, TelemetrySettings};
use runguard_guards::policy;
use runguard_insight::insight::digest::Savings;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// What a number at this path of the settings counts; `None` for a plain number.
pub fn unit_of(path: &[String]) -> Option<&'static str> {
    static SPANS: LazyLock<BTreeSet<Vec<String>>> = LazyLock::new(spans);
    let common = match path {
        [tenants, _, below @ ..] if tenants == "tenants" => below,
        path => path,
    };
    SPANS.contains(&without_subject(common)).then_some("seconds")
}

/// Where the setting of one subject stands for all of them: `guards.handoff.bots.NAME.window` is `guards.handoff.window`.
fn without_subject(path: &[String]) -> Vec<String> {
    static SECTIONS: LazyLock<Vec<policy::SectionInfo>> = LazyLock::new(policy::sections);
    let [table, below @ ..] = path else { return Vec::new() };
    let common = SECTIONS.iter().filter(|_| table == "guards").find_map(|section| {
        let own = below.strip_prefix(section.path.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>().as_slice())?;
        match own {
            [subjects, _, key @ ..] if subjects == section.subjects => Some([&path[..=section.path.len()], key].concat()),
            _ => None,
        }
    });
    common.unwrap_or_else(|| path.to_vec())
}

fn spans() -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut add = |table: &[&str], spans: Vec<Vec<String>>| {
        found.extend(spans.into_iter().map(|path| table.iter().map(|part| (*part).to_owned()).chain(path).collect()));
    };
    add(&["server"], policy::spans_of::<ServerSettings>());
    add(&["store"], policy::spans_of::<StoreSettings>());
    add(&["log"], policy::spans_of::<LogSettings>());
    add(&["alerts"], policy::spans_of::<AlertSettings>());
    add(&["savings"], policy::spans_of::<Savings>());
    add(&["telemetry"], policy::spans_of::<TelemetrySettings>());
    add(&["gateway"], policy::spans_of::<GatewaySettings>());
    for section in policy::sections() {
        add(&[&["guards"], section.path].concat(), (section.spans)());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_is_told_by_its_type_and_not_by_its_name() {
        let unit = |path: &str| unit_of(&path.split('.').map(str::to_owned).collect::<Vec<_>>());
        for span in [
            "server.grace",
            "gateway.patience",
            "guards.handoff.window",
            "tenants.acme.guards.handoff.window",
            "guards.handoff.bots.x.window",
        ] {
            assert_eq!(unit(span), Some("seconds"), "{span}");
        }
        for count in [
            "guards.stall.novelty_window",
            "server.max_streams",
            "log.retention_days",
            "store.patience_ms",
            "guards.handoff.max_handoffs",
            "guards",
        ] {
            assert_eq!(unit(count), None, "{count}");
        }
    }
}
