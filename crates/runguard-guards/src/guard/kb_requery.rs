//! Stops a flow that puts the same question to the knowledge base again and again.
//!
//! One guard, two doors, a file each, for flows of two kinds of platform. The doors share no counters.

pub mod botpress;
mod row;
pub mod voiceflow;

pub use self::botpress::{BOTPRESS_ROUTE, Botpress, BotpressSettings};
pub use self::voiceflow::{CHECK_ROUTE, RECORD_ROUTE, Voiceflow, VoiceflowSettings};
use super::{Billed, GuardEntry, GuardedStep, Holds, Lasts, NamedBy, Slot};
use crate::logged::EachByItself;
use crate::pattern::Patterns;
use crate::policy::{self, AnySection, Section, SectionInfo, SettingsProblem, Tree};
use runguard_core::reason::Reason;
use std::sync::Arc;

/// What a policy has of it: a section for each door.
#[derive(Debug, Clone)]
pub struct Sections {
    pub botpress: Arc<Section<BotpressSettings>>,
    pub voiceflow: Arc<Section<VoiceflowSettings>>,
}

impl policy::Sections for Sections {
    fn build(guards: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Self, SettingsProblem> {
        Ok(Self { botpress: policy::Sections::build(guards, path, patterns)?, voiceflow: policy::Sections::build(guards, path, patterns)? })
    }

    fn about() -> Vec<SectionInfo> {
        vec![SectionInfo::of::<BotpressSettings>(), SectionInfo::of::<VoiceflowSettings>()]
    }

    fn all(&self) -> Vec<&dyn AnySection> {
        vec![&*self.botpress, &*self.voiceflow]
    }

    fn of(&self, reason: Reason) -> &dyn AnySection {
        if CHECK_ROUTE.reasons.contains(&reason) { &*self.voiceflow } else { &*self.botpress }
    }
}

const DOORS: &[&str] = &["botpress", "voiceflow"];

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&BOTPRESS_ROUTE, &CHECK_ROUTE, &RECORD_ROUTE],
    slots: &[&BOTPRESS_SLOT, &VOICEFLOW_SLOT],
    step: GuardedStep::Retrieval,
    billed: Some(Billed::AiStep),
    holds: Holds::Flow,
    shows: row::shows,
    retelling: || Box::new(EachByItself(row::again)),
    traces: None,
};

static BOTPRESS_SLOT: Slot = Slot { subject: NamedBy::Anyone, ..Slot::of::<Botpress, 0>(3, Lasts::Window) };
static VOICEFLOW_SLOT: Slot = Slot::of::<Voiceflow, 0>(4, Lasts::Window);
