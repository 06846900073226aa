//! Doors for the fuzz targets to what is read from a database, and from its address.

/// The words with which an address of Redis is refused.
pub fn redis_address(url: &str) -> Option<String> {
    crate::redis::check_address(url).err().map(|error| error.to_string())
}

/// The words with which an address of Postgres is refused.
pub fn postgres_address(url: &str) -> Option<String> {
    crate::postgres::check_address(url).err().map(|error| error.to_string())
}

/// A row as it lies in a stream or a log, and what it says happened.
pub fn read_row(bytes: &[u8]) {
    for row in crate::cluster::entry::decode(bytes).into_iter().flatten() {
        crate::log::happened(&row.effects);
    }
    crate::log::happened(bytes);
    crate::embedded::decode_slots(bytes);
}
