//! No settings file makes a reader of settings panic, the service's or the agent's; what is read can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    if let Ok(loaded) = runguard_engine::settings::check_text(Path::new("fuzz.toml"), text) {
        let _ = loaded.values();
    }
    if let Ok(settings) = runguard_agent::Settings::from_toml(text) {
        assert!(settings.check().is_ok());
    }
});
