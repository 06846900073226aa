//! What the script is called with, and what its answers mean.

use super::keys::Keys;
use super::nodes::Home;
use super::server::text;
use crate::cluster::link::{EntryId, LinkError, Put, Swap, Swapped, Value};
use redis::Value as Reply;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A state is kept at most this long (about 30,000 years): Redis adds it to the time and must not overflow.
pub(super) const MOST_KEEP_MILLIS: u64 = 1 << 50;

/// The arguments of one call of the script.
pub(super) struct ScriptCall<'a> {
    pub(super) keys: Vec<String>,
    /// In the order of their keys.
    pub(super) streams: Vec<u16>,
    /// After generation, fence, deadline and the write's number.
    pub(super) arguments: Vec<Cow<'a, [u8]>>,
}

impl<'a> ScriptCall<'a> {
    pub(super) fn write(keys: &Keys, wrote: String, states: &str, home: Home, stream_limit: u64, swaps: &'a [Swap]) -> ScriptCall<'a> {
        let number = |number: u64| Cow::Owned(number.to_string().into_bytes());
        let mut streams: BTreeMap<u16, u64> = BTreeMap::new();
        for swap in swaps {
            streams.insert(swap.partition, 0);
        }
        for (place, index) in streams.values_mut().zip(1..) {
            *place = index;
        }
        let about = match home {
            Home::Meta => keys.about(),
            Home::Partition(partition) => keys.mark(partition),
        };
        let cells: usize = swaps.iter().map(|swap| swap.cells.len()).sum();
        let mut call = ScriptCall {
            keys: Vec::with_capacity(2 + streams.len() + cells),
            streams: streams.keys().copied().collect(),
            arguments: Vec::with_capacity(2 + 3 * (swaps.len() + cells)),
        };
        call.keys.extend([about, wrote]);
        call.keys.extend(streams.keys().map(|partition| keys.log(*partition)));
        // Lua counts exactly only so far.
        call.arguments.extend([number(stream_limit.min(1 << 53)), number(streams.len() as u64)]);
        for swap in swaps {
            let stream = streams.get(&swap.partition).copied().unwrap_or(1);
            call.arguments.extend([number(stream), number(swap.cells.len() as u64), swap.entry.as_slice().into()]);
            for cell in &swap.cells {
                call.keys.push(keys.cell(states, &cell.name));
                let expect = if cell.expect == 0 { Vec::new() } else { cell.expect.to_be_bytes().to_vec() };
                let (put, keep_millis) = match &cell.put {
                    Put::Keep => (Vec::new(), 0),
                    Put::Set { token, state, keep_millis } => {
                        ([&token.to_be_bytes()[..], state].concat(), (*keep_millis).clamp(1, MOST_KEEP_MILLIS))
                    }
                };
                call.arguments.extend([expect.into(), put.into(), number(keep_millis)]);
            }
        }
        call
    }
}

pub(super) fn strange() -> LinkError {
    LinkError::Refused("an answer that Redis does not give. Is something else listening there?".to_owned())
}

pub(super) fn array(reply: Reply) -> Result<Vec<Reply>, LinkError> {
    if let Reply::Array(parts) = reply { Ok(parts) } else { Err(strange()) }
}

pub(super) fn read_value(reply: Reply) -> Option<Value> {
    match reply {
        Reply::Nil => Some(None),
        Reply::BulkString(mut bytes) => {
            let token = bytes.first_chunk::<8>().copied().map(u64::from_be_bytes)?;
            bytes.drain(..8);
            Some(Some((token, bytes)))
        }
        _ => None,
    }
}

pub(super) fn read_swapped(reply: Reply) -> Option<Swapped> {
    match reply {
        Reply::Int(1) => Some(Swapped::Done),
        Reply::Int(2) => Some(Swapped::Full),
        Reply::Array(values) => values.into_iter().map(read_value).collect::<Option<Vec<Value>>>().map(Swapped::Raced),
        _ => None,
    }
}

pub(super) fn read_entry(reply: Reply) -> Result<(EntryId, Vec<u8>), LinkError> {
    let [id, Reply::Array(fields)] = <[Reply; 2]>::try_from(array(reply)?).map_err(|_| strange())? else {
        return Err(strange());
    };
    let id = text(&id).parse().map_err(|_| strange())?;
    match fields.into_iter().nth(1) {
        Some(Reply::BulkString(entry)) => Ok((id, entry)),
        Some(_) | None => Err(strange()),
    }
}
