//! No file makes a reader of recorded runs panic, whichever format it is taken for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_replay::format::{Format, open};
use runguard_replay::trace::Detail;
use std::io::Write;

fuzz_target!(|data: (u8, &[u8])| {
    let (choice, bytes) = data;
    let format = Format::ALL.get(usize::from(choice) % (Format::ALL.len() + 1)).copied();
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file can be made");
    file.write_all(bytes).expect("a file can be written");
    if let Ok(runs) = open(file.path(), format, Detail::Texts) {
        // Each either is a run or says why it is none.
        assert!(runs.take(100_000).count() < 100_000, "a reader goes on for ever");
    }
});
