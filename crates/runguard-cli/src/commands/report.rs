//! A report of a time, to send around: a page that needs nothing but a browser, or a table.

mod page;

use super::explain::write;
use super::{RangeArgs, WEEK};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use runguard_core::shown::csv_cell;
use runguard_insight::insight::consumption::Consumption;
use runguard_insight::insight::{Insight, Overview};
use serde_json::Value;

#[derive(Debug, Args)]
#[group(id = "form", required = true, multiple = true, args = ["html", "csv"])]
pub(crate) struct Report {
    #[command(flatten)]
    client: Client,
    /// A page with plots and advice, self-contained; - writes it to the output
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
    /// Totals by day, guard, outcome and reason; - writes them to the output
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    #[command(flatten)]
    range: RangeArgs,
}

impl Report {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.html.as_deref() == Some("-") && self.csv.as_deref() == Some("-") {
            return Err(Failure::Usage("only one of --html and --csv can go to the output; give the other a file".into()));
        }
        let query = self.range.query(WEEK);
        if let Some(target) = &self.html {
            let overview: Overview = serde_json::from_value(self.client.get("/v1/overview", &query)?).map_err(other_version)?;
            let mut answer = self.client.get("/v1/insights", &query)?;
            let insights: Vec<Insight> = serde_json::from_value(answer["insights"].take()).map_err(other_version)?;
            let used: Consumption = serde_json::from_value(self.client.get("/v1/consumption", &query)?).map_err(other_version)?;
            put(target, &page::page(&overview, &insights, &used, &self.client.address("")))?;
        }
        if let Some(target) = &self.csv {
            let stats = self.client.get("/v1/stats", &[query, vec![("bucket", "day".into())]].concat())?;
            put(target, &table(&stats))?;
        }
        Ok(())
    }
}

fn other_version(error: serde_json::Error) -> Failure {
    Failure::Failed(format!("the service's answer is of another version than this program: {error}"))
}

/// A person is told where it is; what is piped on is left alone.
fn put(target: &str, content: &str) -> Result<(), Failure> {
    write(target, content)?;
    if target != "-" {
        output::note(&format!("The report is {target}"));
    }
    Ok(())
}

/// Totals by day, guard, outcome and reason.
fn table(stats: &Value) -> String {
    let mut out = String::from("day,guard,outcome,reason,count\r\n");
    for bucket in stats["buckets"].as_array().into_iter().flatten() {
        let day: String = bucket["start"].as_str().unwrap_or_default().chars().take(10).collect();
        for count in bucket["counts"].as_array().into_iter().flatten() {
            let texts = ["guard", "outcome", "reason"].map(|name| csv_cell(count[name].as_str().unwrap_or_default()));
            out.push_str(&format!("{},{},{}\r\n", csv_cell(&day), texts.join(","), count["count"].as_u64().unwrap_or_default()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_is_data() {
        let counts = json!([
            {"guard": "handoff", "outcome": "blocked", "reason": "cycle_detected", "count": 3},
            {"guard": "=cmd|' /C calc'!A0", "outcome": "@a,\"b\"", "reason": null, "count": 1},
        ]);
        let stats = json!({"buckets": [{"start": "2027-01-15T00:00:00.000Z", "counts": counts}]});
        assert_eq!(
            table(&stats),
            "day,guard,outcome,reason,count\r\n2027-01-15,handoff,blocked,cycle_detected,3\r\n2027-01-15,'=cmd|' /C calc'!A0,\"'@a,\"\"b\"\"\",,1\r\n"
        );
    }
}
