//! Decides what memory an application gives to a peer that requests it.

use crate::context::Context;
use crate::context::endpoint::Endpoint;
use crate::context::receive_queue::Receives;
use crate::context::sharing::InboundSession;
use crate::inbox::message::{Grant, QueuesGrant, SharedPart, SharingRequest};
use crate::program::grants::{GrantedMemory, Process};
use std::sync::Arc;
use uverbs::{DirectPeer, DirectSession, Given, Point, TAKERS, point};

/// The application that is asked for memory.
pub(crate) struct Granter<'a> {
    pub process: &'a Arc<Process>,
    /// The user of the application; `None`: it is in a virtual machine.
    pub uid: Option<u32>,
    /// Address of bytes in its memory by which peers recognise it.
    pub token: u64,
}

/// Decides about a request to share memory with this application. Returns the grant, or `None` to refuse.
pub(crate) fn grant(
    endpoint: &mut Endpoint,
    request: &SharingRequest,
    &Granter { process, uid, token }: &Granter<'_>,
    context: &mut Context,
) -> Option<Grant> {
    // Users of different machines have nothing in common: between those, the trust alone decides.
    let is_same_user = uid.is_none() || request.uid.is_none() || uid == request.uid;
    let trusts = context.adapter.spec().trusts(&request.trust) && is_same_user;
    if !trusts || !endpoint.may_share_with(request.from) {
        return None;
    }
    let (granted, given) = match request.wanted {
        SharedPart::Queues => (Grant::Queues(share(endpoint, request, context)?), GrantedMemory::Queues),
        _ if endpoint.sharing.inbound.is_none() => return None,
        SharedPart::Pages(key) => {
            let shared = context.regions.shared(key)?;
            let memory = shared.give(&request.reach)?;
            let (address, len) = shared.range();
            (Grant::Pages { address, len, id: shared.id(), memory }, GrantedMemory::Regions)
        }
        SharedPart::Memory if !request.reach.is_local => return None,
        SharedPart::Memory => {
            let file = context.space.share()?;
            (Grant::Memory { pid: process.pid, token, file }, GrantedMemory::Everything)
        }
    };
    endpoint.sharing.trust = Some(request.trust.clone());
    let is_noted = context.adapter.grants.note(&request.process, process, given, &request.trust);
    point(Point::Granted);
    is_noted.then_some(granted)
}

/// Prepares a queue pair so that its peer can store messages there itself.
fn share(
    endpoint: &mut Endpoint,
    request: &SharingRequest,
    context: &mut Context,
) -> Option<Box<QueuesGrant>> {
    let (process, reach) = (&request.process, &request.reach);
    let cq = context.cqs.get(&endpoint.receive.cq).filter(|cq| !cq.overrun)?;
    let channel = match cq.channel {
        // Only the device writes to a stream, which has no boundaries; and no descriptor gets into a virtual machine.
        Some(channel) if reach.is_local => context.channels.get(&channel)?.notifier.share().ok()?,
        _ => None,
    };
    let (receive, shared) = match endpoint.receive.receives {
        Receives::Private(_, shape) => (shape, None),
        Receives::Shared(srq) => {
            let srq = context.srqs.get(&srq).filter(|_| endpoint.receive.taker < TAKERS)?;
            (srq.shape, Some(srq.backing.give(reach)?))
        }
    };
    let (memory, session) = context.source.memory_for(reach, "direct session", DirectSession::BYTES)?;
    let peer = DirectPeer {
        qpn: endpoint.qpn.0,
        pd: endpoint.pd.0,
        access: endpoint.attributes.qp_access_flags,
        receive,
        takes_shared: endpoint.receive.is_shared(),
        taker: endpoint.receive.taker,
        message_ring: endpoint.sharing.message_ring.as_ref()?.1,
        memory: endpoint.memory,
        cq: endpoint.receive.cq.0,
        entries: cq.entries,
        regions: context.regions.limit,
        own_regions: 0,
        own_entries: 0,
        has_channel: cq.channel.is_some(),
        has_socket: channel.is_some(),
    };
    let cq = context.cqs.get_mut(&endpoint.receive.cq)?;
    let first = vec![endpoint.backing.give(reach)?, cq.share(reach)?, context.regions.backing.give(reach)?];
    let last = channel.map(Given::Descriptor).into_iter().chain(shared).collect();
    // The peer asks again, so it no longer uses an older session.
    if endpoint.sharing.inbound.is_some() {
        endpoint.unshare(context);
    }
    endpoint.sharing.inbound = Some(InboundSession::new(DirectSession::new(memory), process.clone()));
    // Usually a peer's first packet establishes the connection, but no packets will come here.
    endpoint.establish(context);
    Some(Box::new(QueuesGrant { peer, session, first, last }))
}
