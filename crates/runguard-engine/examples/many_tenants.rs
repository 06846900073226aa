//! How long a settings file with overrides for many tenants takes to load, and how much memory it leaves in use.
//!
//! `cargo run --release -p runguard-engine --example many_tenants -- 10000`

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// One key each, as if the operator had set them one by one: no two tenants in a row are alike.
fn file(tenants: usize) -> String {
    let mut text = String::from("[guards.handoff]\nmax_handoffs = 8\n");
    for number in 0..tenants {
        let _ = match number % 3 {
            0 => writeln!(text, "[tenants.t{number}.guards.handoff]\nmax_handoffs = {}", number % 900 + 1),
            1 => writeln!(text, "[tenants.t{number}.guards.ai_task_retry]\nmax_retries = {}", number % 900 + 1),
            _ => writeln!(
                text,
                "[tenants.t{number}.guards.capture_slot_fill]\nmax_attempts = {}\nwindow = {}",
                number % 900 + 1,
                number + 60
            ),
        };
    }
    text
}

/// A line of `/proc/self/status`, in kB.
fn kilobytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn main() {
    let tenants = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let text = file(tenants);
    let before = kilobytes("VmRSS");
    let began = Instant::now();
    match runguard_engine::settings::check_text(Path::new("many.toml"), &text) {
        Ok(loaded) => println!(
            "{tenants} tenants: {:.0} ms, {} MB in use and {} MB at the most, {} patterns compiled",
            began.elapsed().as_secs_f64() * 1000.0,
            (kilobytes("VmRSS") - before) / 1024,
            (kilobytes("VmHWM") - before) / 1024,
            loaded.settings.policies.patterns().len(),
        ),
        Err(error) => println!("{error}"),
    }
}
