//! Doors for the fuzz targets to what providers read, without a connection.

use super::{ProviderError, Reply, anthropic, bedrock, openai, sse};
use crate::event::{Event, Observer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    OpenAi,
    Anthropic,
    Bedrock,
    /// All at once.
    BedrockWhole,
}

struct Nobody;

impl Observer for Nobody {
    fn event(&mut self, _event: Event) {}
}

/// Reads a stream as it comes, in pieces.
pub fn read(wire: Wire, pieces: &[&[u8]]) -> Result<(), ProviderError> {
    let mut nobody = Nobody;
    let mut reply = Reply::new(&mut nobody, 1000);
    match wire {
        Wire::OpenAi => sse::read_pieces::<openai::Partial>(pieces, &mut reply),
        Wire::Anthropic => sse::read_pieces::<anthropic::Partial>(pieces, &mut reply),
        Wire::Bedrock => bedrock::read_pieces(pieces, &mut reply),
        Wire::BedrockWhole => bedrock::read_whole(&pieces.concat(), &mut reply),
    }
}
