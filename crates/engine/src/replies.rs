//! How often Viaduct answers with an error: per interface, bounded (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f).

use crate::counters::MAX_VIFS;
use model::{ReplyKind, Seconds, VifId};

/// What was sent in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    second: Seconds,
    errors: u32,
}

/// A worker's errors by the interface whose packets they are about.
#[derive(Debug)]
pub(crate) struct ReplyLimits {
    per_second: u32,
    sent: Vec<Sent>,
}

impl ReplyLimits {
    /// At most `per_second` errors a second for an interface.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, sent: vec![Sent::default(); MAX_VIFS] }
    }

    /// Whether an answer of this kind may go out.
    pub fn allow(&mut self, vif: VifId, kind: &ReplyKind, now: Seconds) -> bool {
        if !matches!(kind, ReplyKind::IcmpError { .. } | ReplyKind::TcpReset) {
            return true;
        }
        let Some(sent) = self.sent.get_mut(usize::from(vif.0)) else { return false };
        if sent.second != now {
            *sent = Sent { second: now, errors: 0 };
        }
        sent.errors += 1;
        sent.errors <= self.per_second
    }
}
