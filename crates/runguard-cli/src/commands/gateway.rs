//! `runguard gateway`: the guard service with the routes of the providers, for agents that change one variable and no code.

use super::serve::Serve;
use crate::failure::Failure;
use clap::Args;
use runguard_core::money::NanoDollars;
use serde_json::{Value, json};

/// What stands in front of the providers.
#[derive(Debug, Args)]
pub(crate) struct Gateway {
    #[command(flatten)]
    serve: Serve,
    /// Where questions to /openai/v1 go: OpenAI, or any service that speaks like it [default: api.openai.com]
    #[arg(long, env = "RUNGUARD_GATEWAY_OPENAI", value_name = "URL")]
    openai: Option<String>,
    /// Where questions to /anthropic go [default: api.anthropic.com]
    #[arg(long, env = "RUNGUARD_GATEWAY_ANTHROPIC", value_name = "URL")]
    anthropic: Option<String>,
    /// Where questions to /bedrock go, signed with the AWS credentials of the environment [default: Bedrock of the region]
    #[arg(long, env = "RUNGUARD_GATEWAY_BEDROCK", value_name = "URL")]
    bedrock: Option<String>,
    /// Dollars that one run may spend [default: no limit]
    #[arg(long, value_name = "USD", value_parser = limit, allow_negative_numbers = true)]
    max_usd_per_run: Option<f64>,
    /// Dollars that all runs of a tenant together may spend in a day; without tenants: all runs [default: no limit]
    #[arg(long, value_name = "USD", value_parser = limit, allow_negative_numbers = true)]
    max_usd_per_day: Option<f64>,
    /// Dollars that all runs of a tenant together may spend in a month; without tenants: all runs [default: no limit]
    #[arg(long, value_name = "USD", value_parser = limit, allow_negative_numbers = true)]
    max_usd_per_month: Option<f64>,
}

impl Gateway {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self { serve, openai, anthropic, bedrock, max_usd_per_run, max_usd_per_day, max_usd_per_month } = self;
        let flags: [(&[&'static str], Option<Value>, &'static str); 7] = [
            (&["gateway", "enabled"], Some(true.into()), "gateway"),
            (&["gateway", "upstreams", "openai", "url"], openai.map(Value::from), "--openai"),
            (&["gateway", "upstreams", "anthropic", "url"], anthropic.map(Value::from), "--anthropic"),
            (&["gateway", "upstreams", "bedrock", "url"], bedrock.map(Value::from), "--bedrock"),
            (&["guards", "budget", "max_usd"], max_usd_per_run.map(|usd| json!(usd)), "--max-usd-per-run"),
            (&["guards", "budget", "scopes", "tenant", "day", "max_usd"], max_usd_per_day.map(|usd| json!(usd)), "--max-usd-per-day"),
            (&["guards", "budget", "scopes", "tenant", "month", "max_usd"], max_usd_per_month.map(|usd| json!(usd)), "--max-usd-per-month"),
        ];
        serve.run_with(flags.into_iter().filter_map(|(path, value, flag)| Some((path.to_vec(), value?, flag))).collect())
    }
}

/// A limit in dollars, as it stands behind a flag.
fn limit(text: &str) -> Result<f64, String> {
    let usd: f64 = text.trim().parse().map_err(|_| "must be dollars as a decimal number, such as 0.25".to_owned())?;
    if usd <= 0.0 {
        return Err("must be more than 0; leave it out for no limit".to_owned());
    }
    NanoDollars::limit_from_dollars(usd).map_err(|problem| problem.to_string())?;
    Ok(usd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_above_nothing_and_can_be_counted() {
        assert_eq!((limit("0.25"), limit("1e-12")), (Ok(0.25), Ok(1e-12)));
        for (text, problem) in [
            ("0", "more than 0"),
            ("-1", "more than 0"),
            ("-inf", "more than 0"),
            ("NaN", "decimal number"),
            ("inf", "cannot be infinite"),
            ("1e300", "nine billion"),
            ("five", "decimal number"),
            ("", "decimal number"),
        ] {
            assert!(limit(text).is_err_and(|said| said.contains(problem)), "{text}");
        }
    }

    #[test]
    fn a_negative_limit_is_told_from_an_unknown_flag() {
        #[derive(Debug, clap::Parser)]
        struct Alone {
            #[command(flatten)]
            gateway: Gateway,
        }
        let said = <Alone as clap::Parser>::try_parse_from(["runguard", "--max-usd-per-run", "-1"]).unwrap_err().to_string();
        assert!(said.contains("must be more than 0"), "{said}");
    }
}
