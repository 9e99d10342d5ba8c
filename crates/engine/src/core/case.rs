//! A packet and the decision about it.

use mem::{Csum, Offload};
use model::{Decision, DropReason, PacketView, Verdict, VifId};
use packet::Headers;
use tables::{Deps, FlowCell, View};

pub(crate) struct Case {
    pub ingress: VifId,
    pub offload: Offload,
    pub headers: Headers,
    pub decision: Decision,
    /// Bytes that count against policers, if there are any.
    pub metered: usize,
    pub deps: Deps,
    /// The flow of Open vSwitch on which the decision depends besides.
    pub ovs_flow: Option<FlowCell>,
}

/// Decides the frame of `len` bytes that starts with `bytes`, according to `view`. `checked`: its outer
/// checksum is known to be right.
///
/// # Errors
/// The drop reason of a malformed frame; [`DropReason::HeaderTooLong`] also if `bytes` holds too little.
#[inline(always)] // or its result is copied
pub(super) fn decide(
    view: &View<'_>,
    bytes: &[u8],
    len: usize,
    ingress: VifId,
    offload: Offload,
    checked: bool,
) -> Result<Case, DropReason> {
    let mut packet = PacketView::arrived(view, ingress, bytes, len as u32, offload.gso.map(|gso| gso.size))?;
    packet.checked = checked || offload.csum != Csum::Unknown;
    let decision = model::decide(view, &packet, ingress, view.now());
    let too_long = DropReason::HeaderTooLong;
    if decision.verdict == Verdict::Drop(too_long) && bytes.len() < len {
        return Err(too_long);
    }
    let metered = match decision.effects.meters.is_empty() {
        true => 0,
        false => model::rewrite::metered_len(&decision.verdict, &packet),
    };
    let (deps, ovs_flow) = view.deps_and_flow();
    Ok(Case { ingress, offload, headers: packet.headers, decision, metered, deps, ovs_flow })
}
