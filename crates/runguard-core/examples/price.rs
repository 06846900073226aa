//! Prices of models: names in, one on a line; for each a line of JSON out, `null` when no price is known.

#![expect(clippy::disallowed_methods, reason = "the crate has no I/O; what shows it has")]

use runguard_core::prices::Prices;
use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let prices = Prices::bundled();
    let mut out = io::stdout().lock();
    for name in io::stdin().lock().lines() {
        let found = prices.price(&name?).map(|(price, source)| serde_json::json!({ "price": price, "source": source.to_string() }));
        writeln!(out, "{}", serde_json::json!(found))?;
    }
    Ok(())
}
