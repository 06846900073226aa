//! Nothing a provider sends makes its reader panic, in whatever pieces it comes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_agent::provider::fuzzing::{Wire, read};

fuzz_target!(|data: (u8, u8, &[u8])| {
    let (wire, piece, bytes) = data;
    let wire = [Wire::OpenAi, Wire::Anthropic, Wire::Bedrock, Wire::BedrockWhole][usize::from(wire) % 4];
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(piece).max(1)).collect();
    let _ = read(wire, &pieces);
});
