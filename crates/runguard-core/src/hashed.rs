//! Maps whose keys are hashes already: nothing is hashed twice, and no secret of the process decides their order.

use std::hash::{BuildHasherDefault, Hasher};

/// A map from a hash to something.
#[allow(clippy::disallowed_types, reason = "with a hasher of its own")]
pub type HashedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<AsItIs>>;

/// Takes the key for its hash.
#[derive(Debug, Default, Clone)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
