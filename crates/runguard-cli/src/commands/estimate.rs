//! `runguard estimate`: what a loop costs and what the guard leaves of it, for the reader's own numbers.

use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::{Args, ValueEnum};
use runguard_core::GuardName;
use runguard_core::limits::InvalidSetting;
use runguard_core::money::NanoDollars;
use runguard_core::nearest;
use runguard_core::prices::{PerMillion, Price};
use runguard_core::text::grouped;
use runguard_insight::estimate::{
    Amount, EXAMPLES, Example, Figure, Inputs, Line, Millionths, Period, TOKEN_EXAMPLES, TokenLine, TokenLoop, Tokens, estimate,
    estimate_tokens,
};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Per {
    /// A day
    Day,
    /// A month
    Month,
    /// One event, or one conversation
    Once,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard estimate --conversations 10000 --affected 30 --attempts 5 --hopeless 100 --usd-per-operation 0.01
  runguard estimate --guard kb_requery --conversations 5000 --per once --affected 100
  runguard estimate --model us.anthropic.claude-3-7-sonnet-20250219-v1:0 --steps 100 --input-tokens 10000 --output-tokens 1000 --growth 2000
  runguard estimate --example botpress-launch
  runguard estimate --examples")]
pub(crate) struct Estimate {
    /// The guard whose ceilings are taken, and whose usual loop; on a terminal without any option, you are asked
    #[arg(long, value_name = "GUARD")]
    guard: Option<String>,
    /// Conversations in a period
    #[arg(long, value_name = "NUMBER")]
    conversations: Option<String>,
    /// The period
    #[arg(long)]
    per: Option<Per>,
    /// Percent of them that get into the loop
    #[arg(long, value_name = "PERCENT")]
    affected: Option<String>,
    /// Rounds of the loop in each, on average, with nobody to stop it
    #[arg(long, value_name = "NUMBER")]
    attempts: Option<String>,
    /// Billed operations of one round
    #[arg(long, value_name = "NUMBER")]
    operations_per_attempt: Option<u64>,
    /// Billed operations of every conversation besides
    #[arg(long, value_name = "NUMBER")]
    base_operations: Option<u64>,
    /// Rounds the guard lets pass in one conversation
    #[arg(long, value_name = "NUMBER")]
    allowed: Option<u64>,
    /// Percent of the affected in which the guard sees at once that no round can help
    #[arg(long, value_name = "PERCENT")]
    hopeless: Option<String>,
    /// Credits of one operation
    #[arg(long, value_name = "CREDITS")]
    credits_per_operation: Option<String>,
    /// Dollars of one operation
    #[arg(long, value_name = "DOLLARS")]
    usd_per_operation: Option<String>,
    /// Days that make a month
    #[arg(long, value_name = "DAYS")]
    days_per_month: Option<u64>,
    /// A loop of model calls, counted in tokens: any model of the price list
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Model calls of the loop, with nobody to stop it; --allowed is how many of them the guard lets pass
    #[arg(long, value_name = "NUMBER")]
    steps: Option<u64>,
    /// Tokens that the first step reads
    #[arg(long, value_name = "TOKENS")]
    input_tokens: Option<u64>,
    /// Tokens that each step writes
    #[arg(long, value_name = "TOKENS")]
    output_tokens: Option<u64>,
    /// Tokens that each step reads more than the one before
    #[arg(long, value_name = "TOKENS")]
    growth: Option<u64>,
    /// Runs that get into the loop
    #[arg(long, value_name = "NUMBER")]
    runs: Option<u64>,
    /// Dollars for a million tokens read, in place of the price list's
    #[arg(long, value_name = "DOLLARS", requires = "usd_per_million_output")]
    usd_per_million_input: Option<String>,
    /// Dollars for a million tokens written
    #[arg(long, value_name = "DOLLARS", requires = "usd_per_million_input")]
    usd_per_million_output: Option<String>,
    /// A worked example of the documents; other options change its numbers
    #[arg(long, value_name = "NAME")]
    example: Option<String>,
    /// All of them, with what the documents say and what is right
    #[arg(long)]
    examples: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Estimate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.examples {
            return self.all_examples();
        }
        if let Some((example, given)) = self.token_loop()? {
            return self.tokens(example, given);
        }
        let example = self.example()?;
        let inputs = match example {
            Some(example) => {
                let Some(inputs) = (example.inputs)() else {
                    return if self.json { output::json(&example_json(example, None)) } else { figures(example) };
                };
                self.changed(inputs)?
            }
            None if self.is_silent() && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
                questions(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())?
            }
            None => self.changed(self.of_guard()?)?,
        };
        let lines = estimate(&inputs).map_err(|InvalidSetting { name, problem }| Failure::Usage(format!("--{name} {problem}")))?;
        if self.json {
            return output::json(&match example {
                Some(example) => example_json(example, Some((&inputs, &lines))),
                None => estimate_json(&inputs, &lines),
            });
        }
        print(&inputs, &lines)?;
        example.map_or(Ok(()), figures)
    }

    /// The loop of model calls that is asked about, and the example it comes from.
    fn token_loop(&self) -> Result<Option<(Option<&'static Example>, TokenLoop)>, Failure> {
        let numbers = [self.steps, self.input_tokens, self.output_tokens, self.growth, self.runs];
        let counts_tokens = self.model.is_some() || self.usd_per_million_input.is_some() || numbers.iter().any(Option::is_some);
        let example = self.example.as_deref().and_then(|name| TOKEN_EXAMPLES.iter().find(|(example, _)| example.name == name));
        if !counts_tokens && example.is_none() {
            return Ok(None);
        }
        let conversations = [
            ("guard", self.guard.is_some()),
            ("conversations", self.conversations.is_some()),
            ("affected", self.affected.is_some()),
            ("attempts", self.attempts.is_some()),
            ("hopeless", self.hopeless.is_some()),
            ("per", self.per.is_some()),
            ("operations-per-attempt", self.operations_per_attempt.is_some()),
            ("base-operations", self.base_operations.is_some()),
            ("credits-per-operation", self.credits_per_operation.is_some()),
            ("usd-per-operation", self.usd_per_operation.is_some()),
            ("days-per-month", self.days_per_month.is_some()),
            ("example", self.example.is_some() && example.is_none()),
        ];
        if let Some((name, _)) = conversations.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::Usage(format!(
                "--{name} counts operations of conversations, and --model and --steps count tokens of model calls: ask for one of them"
            )));
        }
        let usual = example.map_or_else(TokenLoop::default, |(_, given)| given());
        let per_million = |name: &str, text: &Option<String>| {
            text.as_deref().map(PerMillion::parse).transpose().map_err(|error| Failure::Usage(format!("--{name}: {error}")))
        };
        let input = per_million("usd-per-million-input", &self.usd_per_million_input)?;
        let output = per_million("usd-per-million-output", &self.usd_per_million_output)?;
        let own = input.zip(output).map(|(input, output)| Price::new(input, output));
        Ok(Some((
            example.map(|(example, _)| example),
            TokenLoop {
                price: own.or_else(|| usual.price.clone().filter(|_| self.model.is_none())),
                model: self.model.clone().unwrap_or(usual.model),
                runs: self.runs.unwrap_or(usual.runs),
                steps: self.steps.unwrap_or(usual.steps),
                input_tokens: self.input_tokens.unwrap_or(usual.input_tokens),
                output_tokens: self.output_tokens.unwrap_or(usual.output_tokens),
                growth: self.growth.unwrap_or(usual.growth),
                allowed: self.allowed.unwrap_or(usual.allowed),
            },
        )))
    }

    fn tokens(&self, example: Option<&'static Example>, given: TokenLoop) -> Result<(), Failure> {
        let line = estimate_tokens(&given).map_err(|InvalidSetting { name, problem }| Failure::Usage(format!("--{name} {problem}")))?;
        if self.json {
            return output::json(&match example {
                Some(example) => with_example(tokens_json(&given, &line), example),
                None => tokens_json(&given, &line),
            });
        }
        let mut table = output::table(&["", "without a guard", "with it", "saved"]);
        let amounts = [line.without, line.with, line.saved];
        let mut row = |what: &str, text: [String; 3]| {
            table.add_row(std::iter::once(Cell::new(what)).chain(text.map(right)));
        };
        row("model calls", amounts.map(|amount| grouped(amount.steps)));
        row("tokens read", amounts.map(|amount| grouped(amount.input)));
        row("tokens written", amounts.map(|amount| grouped(amount.output)));
        let dollars = amounts.map(|amount| amount.usd);
        row("dollars", dollars_at(decimals_of(&[dollars]), dollars));
        output::show(&table)?;
        output::line(&if given.price.is_some() { "At your own prices.".to_owned() } else { format!("At the price of {}.", given.model) })?;
        example.map_or(Ok(()), figures)
    }

    fn is_silent(&self) -> bool {
        let texts = [
            &self.guard,
            &self.conversations,
            &self.affected,
            &self.attempts,
            &self.hopeless,
            &self.credits_per_operation,
            &self.usd_per_operation,
        ];
        let numbers = [self.operations_per_attempt, self.base_operations, self.allowed, self.days_per_month];
        texts.iter().all(|text| text.is_none()) && numbers.iter().all(Option::is_none) && self.per.is_none() && !self.json
    }

    fn example(&self) -> Result<Option<&'static Example>, Failure> {
        let Some(name) = &self.example else { return Ok(None) };
        let names = all_examples().map(|example| example.name);
        EXAMPLES
            .iter()
            .find(|example| example.name == name)
            .map(Some)
            .ok_or_else(|| Failure::Usage(format!("--example: there is no example `{name}`; {}", nearest::hint(name, names))))
    }

    fn of_guard(&self) -> Result<Inputs, Failure> {
        let name = self.guard.as_deref().unwrap_or(GuardName::AiTaskRetry.code());
        usual(name).map_err(|problem| Failure::Usage(format!("--guard: {problem}")))
    }

    fn changed(&self, mut inputs: Inputs) -> Result<Inputs, Failure> {
        fn wrong(name: &str) -> impl Fn(String) -> Failure {
            move |problem| Failure::Usage(format!("--{name}: {problem}"))
        }
        if let Some(text) = &self.conversations {
            inputs.conversations = whole(text).map_err(wrong("conversations"))?;
        }
        if let Some(per) = self.per {
            inputs.period = match per {
                Per::Day => Period::Day,
                Per::Month => Period::Month,
                Per::Once => Period::Once,
            };
        }
        if let Some(text) = &self.affected {
            inputs.affected = Millionths::parse_percent(text).map_err(wrong("affected"))?;
        }
        if let Some(text) = &self.attempts {
            inputs.attempts = Millionths::parse(text).map_err(wrong("attempts"))?;
        }
        if let Some(text) = &self.hopeless {
            inputs.hopeless = Millionths::parse_percent(text).map_err(wrong("hopeless"))?;
        }
        if let Some(text) = &self.credits_per_operation {
            inputs.credits_per_operation = Millionths::parse(text).map_err(wrong("credits-per-operation"))?;
        }
        if let Some(text) = &self.usd_per_operation {
            inputs.usd_per_operation = NanoDollars::parse(text).map_err(|error| wrong("usd-per-operation")(error.to_string()))?;
        }
        inputs.operations_per_attempt = self.operations_per_attempt.unwrap_or(inputs.operations_per_attempt);
        inputs.base_operations = self.base_operations.unwrap_or(inputs.base_operations);
        inputs.allowed = self.allowed.unwrap_or(inputs.allowed);
        inputs.days_per_month = self.days_per_month.unwrap_or(inputs.days_per_month);
        Ok(inputs)
    }

    fn all_examples(&self) -> Result<(), Failure> {
        if self.json {
            let all: Vec<Value> = EXAMPLES
                .iter()
                .map(|example| {
                    let inputs = (example.inputs)();
                    let lines = inputs.and_then(|inputs| estimate(&inputs).ok()).unwrap_or_default();
                    example_json(example, inputs.as_ref().map(|inputs| (inputs, lines.as_slice())))
                })
                .chain(TOKEN_EXAMPLES.iter().map(|(example, given)| {
                    let given = given();
                    let worked = estimate_tokens(&given).map_or_else(|_| json!({}), |line| tokens_json(&given, &line));
                    with_example(worked, example)
                }))
                .collect();
            return output::json(&json!({ "examples": all }));
        }
        let mut table = output::table(&["example", "what", "published", "right"]);
        for example in all_examples() {
            for figure in (example.figures)() {
                let said = figure.document.map(grouped).unwrap_or_default();
                let right = if figure.agrees() { grouped(figure.right) } else { format!("{} (!)", grouped(figure.right)) };
                table.add_row([example.name.to_owned(), figure.what.to_owned(), said, right]);
            }
        }
        output::show(&table)?;
        output::prose("(!) it was miscounted; `runguard estimate --example NAME` says where")
    }
}

fn all_examples() -> impl Iterator<Item = &'static Example> + Clone {
    EXAMPLES.iter().chain(TOKEN_EXAMPLES.iter().map(|(example, _)| example))
}

fn whole(text: &str) -> Result<u64, String> {
    text.trim().replace([',', '_'], "").parse().map_err(|_| format!("`{text}` is no whole number"))
}

fn usual(guard: &str) -> Result<Inputs, String> {
    GuardName::from_code(&guard.trim().replace('-', "_")).and_then(Inputs::of).ok_or_else(|| {
        let known: Vec<&str> = GuardName::ALL.iter().filter(|guard| Inputs::of(**guard).is_some()).map(|guard| guard.code()).collect();
        format!("there are no usual numbers for `{guard}`; known are {}", known.join(", "))
    })
}

/// Asks for the numbers that matter most, each with what is usual.
fn questions(input: &mut dyn BufRead, out: &mut dyn Write) -> Result<Inputs, Failure> {
    let mut inputs = ask(input, out, "Guard", GuardName::AiTaskRetry.code(), usual)?;
    inputs.conversations = ask(input, out, "Conversations a day", &inputs.conversations.to_string(), whole)?;
    inputs.affected = ask(input, out, "Percent of them that get into the loop", "30", Millionths::parse_percent)?;
    inputs.attempts = ask(input, out, "Rounds of the loop in each", &inputs.attempts.to_string(), Millionths::parse)?;
    inputs.hopeless = ask(input, out, "Percent of those in which no round can help", "0", Millionths::parse_percent)?;
    inputs.operations_per_attempt = ask(input, out, "Billed operations of one round", &inputs.operations_per_attempt.to_string(), whole)?;
    let dollars = |text: &str| NanoDollars::parse(text).map_err(|error| error.to_string());
    inputs.usd_per_operation = ask(input, out, "Dollars of one operation", "0.01", dollars)?;
    Ok(inputs)
}

/// Until the answer can be read; an empty one is what is usual.
fn ask<T>(
    input: &mut dyn BufRead,
    out: &mut dyn Write,
    question: &str,
    usual: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    loop {
        write!(out, "{question} [{usual}]: ")?;
        out.flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Err(Failure::Cancelled);
        }
        let given = line.trim();
        match read(if given.is_empty() { usual } else { given }) {
            Ok(value) => return Ok(value),
            Err(problem) => writeln!(out, "  {}", output::clean(&problem))?,
        }
    }
}

fn print(inputs: &Inputs, lines: &[Line]) -> Result<(), Failure> {
    let per = |period: Period| match period {
        Period::Day => " a day",
        Period::Month => " a month",
        Period::Once => "",
    };
    let has_dollars = !inputs.usd_per_operation.is_zero();
    let mut table = output::table(&["", "without a guard", "with it", "saved"]);
    let amounts_of = |line: &Line| [line.without, line.with, line.saved];
    let dollars_of = |line: &Line| amounts_of(line).map(|amount| amount.usd);
    let decimals = decimals_of(&lines.iter().map(dollars_of).collect::<Vec<_>>());
    for line in lines {
        let mut row = |what: &str, text: [String; 3]| {
            table.add_row(std::iter::once(Cell::new(format!("{what}{}", per(line.period)))).chain(text.map(right)));
        };
        row("operations", amounts_of(line).map(|amount| grouped(amount.operations)));
        row("credits", amounts_of(line).map(|amount| grouped_decimal(&amount.credits())));
        if has_dollars {
            row("dollars", dollars_at(decimals, dollars_of(line)));
        }
    }
    output::show(&table)?;
    if let Some(line) = lines.first() {
        let share = (u128::from(line.saved.operations) * 1000).checked_div(u128::from(line.without.operations)).unwrap_or(0);
        output::line(&format!("{}.{} % of the loop's operations are saved.", share / 10, share % 10))?;
        if line.base.operations > 0 {
            output::prose(&format!("The conversations' own operations{}: {}.", per(line.period), grouped(line.base.operations)))?;
        }
    }
    Ok(())
}

fn right(text: String) -> Cell {
    Cell::new(text).right()
}

const MOST_DECIMALS: u32 = 9;

/// So many that each amount is shown to within a twentieth, and none that is something as nothing: two for most.
fn decimals_of(rows: &[[NanoDollars; 3]]) -> u32 {
    let is_near = |decimals: u32| {
        rows.iter().all(|row| {
            let shown = rounded(decimals, *row);
            row.iter().zip(shown).all(|(exact, shown)| (shown - exact.as_nanos()).abs() <= exact.as_nanos() / 20)
        })
    };
    (2..MOST_DECIMALS).find(|decimals| is_near(*decimals)).unwrap_or(MOST_DECIMALS)
}

/// What is saved is the difference of what is shown, so that the row adds up.
fn rounded(decimals: u32, [without, with, _]: [NanoDollars; 3]) -> [i64; 3] {
    let unit = 10_i64.pow(MOST_DECIMALS - decimals);
    let near = |amount: NanoDollars| (amount.as_nanos() / unit + i64::from(amount.as_nanos() % unit * 2 >= unit)).saturating_mul(unit);
    let (without, with) = (near(without), near(with));
    [without, with, without - with]
}

/// With its thousands apart, whatever is behind the point.
fn grouped_decimal(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    whole.parse().map_or_else(|_| number.to_owned(), |whole| format!("{}{rest}", grouped(whole)))
}

fn dollars_at(decimals: u32, row: [NanoDollars; 3]) -> [String; 3] {
    let (dollar, unit) = (10_i64.pow(MOST_DECIMALS), 10_i64.pow(MOST_DECIMALS - decimals));
    let shown = |nanos: i64| format!("{}.{:0width$}", nanos / dollar, nanos % dollar / unit, width = decimals as usize);
    rounded(decimals, row).map(|nanos| format!("${}", grouped_decimal(&shown(nanos))))
}

fn figures(example: &Example) -> Result<(), Failure> {
    output::prose(&format!("\n{}: {}", example.source, example.about))?;
    for Figure { what, document, right, note } in (example.figures)() {
        let said = match document {
            Some(document) if document == right => format!("{}, as published", grouped(right)),
            Some(document) => format!("{}; published: {}", grouped(right), grouped(document)),
            None => grouped(right),
        };
        let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
        output::prose(&format!("  {what}: {said}{note}"))?;
    }
    Ok(())
}

fn estimate_json(inputs: &Inputs, lines: &[Line]) -> Value {
    let amount = |amount: &Amount| json!({"operations": amount.operations, "credits": amount.credits(), "usd": amount.usd.as_dollars(), "usd_nanos": amount.usd.as_nanos()});
    let of = |line: &Line| json!({"base": amount(&line.base), "without": amount(&line.without), "with": amount(&line.with), "saved": amount(&line.saved)});
    let periods: serde_json::Map<String, Value> = lines.iter().map(|line| (line.period.code().to_owned(), of(line))).collect();
    json!({
        "inputs": {
            "conversations": inputs.conversations,
            "per": inputs.period.code(),
            "days_per_month": inputs.days_per_month,
            "affected": inputs.affected.to_string(),
            "attempts": inputs.attempts.to_string(),
            "operations_per_attempt": inputs.operations_per_attempt,
            "base_operations": inputs.base_operations,
            "allowed": inputs.allowed,
            "allowed_in_all": inputs.allowed_in_all,
            "refused_operations": inputs.refused_operations,
            "hopeless": inputs.hopeless.to_string(),
            "credits_per_operation": inputs.credits_per_operation.to_string(),
            "usd_per_operation": inputs.usd_per_operation.as_dollars(),
        },
        "estimate": periods,
    })
}

fn tokens_json(given: &TokenLoop, line: &TokenLine) -> Value {
    let amount = |amount: &Tokens| json!({"steps": amount.steps, "input_tokens": amount.input, "output_tokens": amount.output, "usd": amount.usd.as_dollars(), "usd_nanos": amount.usd.as_nanos()});
    json!({
        "inputs": {
            "model": given.model,
            "price": given.price,
            "runs": given.runs,
            "steps": given.steps,
            "input_tokens": given.input_tokens,
            "output_tokens": given.output_tokens,
            "growth": given.growth,
            "allowed": given.allowed,
        },
        "estimate": {"once": {"without": amount(&line.without), "with": amount(&line.with), "saved": amount(&line.saved)}},
    })
}

fn example_json(example: &Example, worked: Option<(&Inputs, &[Line])>) -> Value {
    with_example(worked.map_or_else(|| json!({}), |(inputs, lines)| estimate_json(inputs, lines)), example)
}

fn with_example(mut value: Value, example: &Example) -> Value {
    let figures: Vec<Value> = (example.figures)()
        .iter()
        .map(|figure| {
            json!({"what": figure.what, "document": figure.document, "right": figure.right, "agrees": figure.agrees(), "note": figure.note})
        })
        .collect();
    value["example"] =
        json!({"name": example.name, "page": example.source, "source": example.source, "about": example.about, "figures": figures});
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_take_what_is_usual_and_ask_again_when_it_cannot_be_read() {
        let mut shown = Vec::new();
        let inputs = questions(&mut "kb_requery\n20000\n12.5%\nmany\n4\n\n\n0.002\n".as_bytes(), &mut shown).unwrap();
        assert_eq!((inputs.conversations, inputs.operations_per_attempt), (20_000, 2));
        assert_eq!((inputs.affected.to_string().as_str(), inputs.attempts.to_string().as_str()), ("0.125", "4"));
        assert_eq!(inputs.usd_per_operation.to_string(), "$0.002");
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("`many` is no number"), "{shown}");
        assert!(matches!(questions(&mut "".as_bytes(), &mut Vec::new()), Err(Failure::Cancelled)));
    }

    #[test]
    fn dollars_of_a_row_add_up_and_small_ones_are_seen() {
        let row = |without: &str, with: &str| {
            let [without, with] = [without, with].map(|text| NanoDollars::parse(text).unwrap());
            [without, with, NanoDollars::from_nanos(without.as_nanos() - with.as_nanos()).unwrap()]
        };
        let shown = |rows: &[[NanoDollars; 3]]| rows.iter().map(|row| dollars_at(decimals_of(rows), *row).join(" ")).collect::<Vec<_>>();
        assert_eq!(shown(&[row("184.5", "0")]), ["$184.50 $0.00 $184.50"]);
        assert_eq!(shown(&[row("0.345", "0.17")]), ["$0.35 $0.17 $0.18"]);
        assert_eq!(shown(&[row("1.005", "0.502")]), ["$1.01 $0.50 $0.51"]);
        assert_eq!(shown(&[row("12.5", "0.004")]), ["$12.500 $0.004 $12.496"]);
        assert_eq!(shown(&[row("0.0004", "0.0001"), row("0.012", "0.003")]), ["$0.0004 $0.0001 $0.0003", "$0.0120 $0.0030 $0.0090"]);
        assert_eq!(shown(&[row("0.000000001", "0")]), ["$0.000000001 $0.000000000 $0.000000001"]);
        assert_eq!(shown(&[row("0", "0")]), ["$0.00 $0.00 $0.00"]);
        assert_eq!(shown(&[row("1234567.5", "1000")]), ["$1,234,567.50 $1,000.00 $1,233,567.50"]);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (75_000, "75,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        for (number, text) in [("45000", "45,000"), ("3888.5", "3,888.5"), ("0.015", "0.015")] {
            assert_eq!(grouped_decimal(number), text);
        }
    }
}
