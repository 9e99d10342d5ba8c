//! The device's handling of `uverbs::cm` requests: each becomes a call of `rdma::cm::Manager`.

use rdma::Mtu;
use rdma::cm::{
    Choice, Client, Event, Manager, Parameters, PortSpace, Refused, Retrying, Target, Transition, Transport,
};
use std::net::IpAddr;
use std::time::Duration;
use uverbs::cm::{
    CmConnection, CmDatagram, CmEvent, CmGroup, CmOption, CmParameters, CmReply, CmRequest, CmRoute,
};
use uverbs::qp::{access, mask};
use uverbs::{AddressVector, QpAttributes, QpState, QpType, Refusal, Reply};

fn refusal(refused: Refused) -> Refusal {
    Refusal { errno: refused.errno(), message: refused.to_string() }
}

/// Handles a request, except `Hello`, and except a channel's socket: the host does both.
pub fn answer(
    manager: &mut Manager,
    now: Duration,
    client: Client,
    request: CmRequest,
    reaches: impl FnOnce(IpAddr, IpAddr) -> bool,
) -> Result<Reply, Refusal> {
    match request {
        CmRequest::BindAddr { id, address } => {
            let bound = manager.bind_addr(client, id, address).map_err(refusal)?;
            return Ok(Reply::Cm(CmReply::Bound(bound)));
        }
        CmRequest::InitQpAttr { id, state } => {
            let target = target(state).ok_or(Refused::Parameter).map_err(refusal)?;
            let transition = manager.transition(client, id, target).map_err(refusal)?;
            return Ok(Reply::Cm(attributes(target, transition)));
        }
        CmRequest::CreateChannel { .. } => return handle(manager.create_channel(client)),
        CmRequest::CreateId { channel, port_space, qp_type } => {
            let space = PortSpace::from_number(port_space).ok_or(Refused::Parameter).map_err(refusal)?;
            return handle(manager.create_id(client, channel, space, transport(qp_type)));
        }
        _ => {}
    }
    let done = match request {
        CmRequest::DestroyChannel { channel } => manager.destroy_channel(now, client, channel),
        CmRequest::DestroyId { id } => manager.destroy_id(now, client, id),
        CmRequest::MigrateId { id, channel } => manager.migrate_id(client, id, channel),
        CmRequest::SetOption { id, option } => manager.set_option(client, id, choice(option)),
        CmRequest::ResolveAddr { id, source, destination } => {
            manager.resolve_addr(client, id, source, destination, reaches)
        }
        CmRequest::ResolveRoute { id } => manager.resolve_route(client, id),
        CmRequest::Listen { id, backlog } => manager.listen(client, id, backlog),
        CmRequest::Connect { id, parameters } => manager.connect(now, client, id, &wanted(parameters)),
        CmRequest::Establish { id } => manager.establish(client, id),
        CmRequest::Accept { id, parameters } => manager.accept(now, client, id, &wanted(parameters)),
        CmRequest::Reject { id, reason, private } => manager.reject(client, id, reason, &private),
        CmRequest::Disconnect { id } => manager.disconnect(now, client, id),
        CmRequest::Notify { id } => manager.notify(client, id),
        CmRequest::JoinMulticast { id, address, join } => manager.join_multicast(client, id, address, join),
        _ => Err(Refused::Parameter),
    };
    done.map(|()| Reply::Done).map_err(refusal)
}

fn handle(made: Result<u32, Refused>) -> Result<Reply, Refusal> {
    made.map(Reply::Handle).map_err(refusal)
}

const fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Rc => Transport::Reliable,
        QpType::Uc => Transport::Unreliable,
        QpType::Ud => Transport::Datagram,
    }
}

const fn choice(option: CmOption) -> Choice {
    match option {
        CmOption::TypeOfService(value) => Choice::TypeOfService(value),
        CmOption::ReuseAddress(value) => Choice::ReuseAddress(value),
        CmOption::OnlyIpv6(value) => Choice::OnlyIpv6(value),
        CmOption::AckTimeout(value) => Choice::AckTimeout(value),
    }
}

fn wanted(asked: CmParameters) -> Parameters {
    Parameters {
        queue_pair: asked.qp_num,
        queue_key: asked.qkey,
        shared_receives: asked.srq,
        responder_resources: asked.responder_resources,
        initiator_depth: asked.initiator_depth,
        flow_control: asked.flow_control,
        retries: asked.retry_count,
        rnr_retries: asked.rnr_retry_count,
        private: asked.private,
    }
}

fn target(state: u32) -> Option<Target> {
    match QpState::from_number(state)? {
        QpState::Init => Some(Target::Init),
        QpState::ReadyToReceive => Some(Target::ReadyToReceive),
        QpState::ReadyToSend => Some(Target::ReadyToSend),
        _ => None,
    }
}

const PORT: u8 = 1;

fn attributes(target: Target, transition: Transition) -> CmReply {
    let state = match target {
        Target::Init => QpState::Init,
        Target::ReadyToReceive => QpState::ReadyToReceive,
        Target::ReadyToSend => QpState::ReadyToSend,
    };
    let mut attributes = QpAttributes { qp_state: state as u32, ..QpAttributes::default() };
    let mask = mask::STATE | fill(&mut attributes, transition);
    CmReply::QpAttributes { mask, attributes }
}

/// Sets the attributes of a transition, and returns their mask.
fn fill(attributes: &mut QpAttributes, transition: Transition) -> u32 {
    attributes.port_num = PORT.into();
    match transition {
        Transition::Init { writes, reads } => {
            let write = if writes { access::REMOTE_WRITE } else { 0 };
            let read = if reads { access::REMOTE_READ | access::REMOTE_ATOMIC } else { 0 };
            attributes.qp_access_flags = write | read;
            mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS
        }
        Transition::InitDatagram { queue_key } => {
            attributes.qkey = queue_key;
            mask::PKEY_INDEX | mask::PORT | mask::QKEY
        }
        Transition::ReadyToReceive {
            destination,
            source_index,
            traffic_class,
            hop_limit,
            mtu,
            queue_pair,
            psn,
            reliable,
        } => {
            attributes.ah = AddressVector {
                dgid: destination,
                sgid_index: source_index,
                hop_limit,
                traffic_class,
                port_num: PORT,
                is_global: true,
                ..AddressVector::default()
            };
            attributes.path_mtu = mtu as u32;
            (attributes.dest_qp_num, attributes.rq_psn) = (queue_pair, psn);
            let always = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
            let Some((resources, timer)) = reliable else { return always };
            (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (resources.into(), timer.into());
            always | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER
        }
        Transition::ReadyToSend { psn, reliable } => {
            attributes.sq_psn = psn;
            let Some(Retrying { timeout, retries, rnr_retries, reads }) = reliable else {
                return mask::SQ_PSN;
            };
            (attributes.timeout, attributes.retry_cnt) = (timeout.into(), retries.into());
            (attributes.rnr_retry, attributes.max_rd_atomic) = (rnr_retries.into(), reads.into());
            mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC
        }
    }
}

/// Returns the event to send on a channel with this tag.
pub fn told(event: &Event, tag: u32) -> CmEvent {
    CmEvent {
        tag,
        id: event.id,
        event: event.kind as u32,
        status: event.status,
        listener: event.listener,
        route: event.route.map(|route| CmRoute {
            local: route.local,
            peer: route.peer,
            own: route.own,
            mtu: route.mtu as u32,
        }),
        connection: event.connection.map(|details| CmConnection {
            qp_num: details.queue_pair,
            srq: details.shared_receives,
            responder_resources: details.responder_resources,
            initiator_depth: details.initiator_depth,
            flow_control: details.flow_control,
            retry_count: details.retries,
            rnr_retry_count: details.rnr_retries,
        }),
        datagram: event
            .datagram
            .map(|datagram| CmDatagram { qp_num: datagram.queue_pair, qkey: datagram.queue_key }),
        group: event.group.map(|group| CmGroup { join: group.join, gid: group.gid }),
        private: event.private.clone(),
    }
}

pub const MTU: Mtu = Mtu::Bytes1024;
