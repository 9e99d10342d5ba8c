//! Whether packets of one verbs device may go to another without the workers seeing them: where those would do nothing else.

use engine::Engine;
use model::{Executor, Verdict, VifId};
use std::sync::Arc;

/// The engine's tables.
pub struct EngineRules(pub Arc<Engine>);

impl hca::Rules for EngineRules {
    fn lets(&self, from: u16, frame: &[u8], to: u16) -> bool {
        let decision = self.0.explain(VifId(from), frame).decision;
        let effects = &decision.effects;
        let watched =
            !(effects.meters.is_empty() && effects.mirror_in.is_empty() && effects.mirror_out.is_empty());
        matches!(decision.verdict, Verdict::Forward(forward) if forward.port == VifId(to)) && !watched
    }
}
