//! Owns the connection manager of a device, which serves programs, and exchanges datagrams with other managers,
//! from queue pair 1 to queue pair 1. May import `net` and what stands below it.

use crate::base::budget::{Kind, Reservation};
use crate::base::clock::monotonic;
use crate::base::header::source_port;
use crate::base::limits::{MAX_READS, PARTITION, PORT};
use crate::base::random;
use crate::base::refusal::refuse;
use crate::base::refusal_log::RefusalLog;
use crate::inbox::message::Message;
use crate::inbox::{Inbox, Packet};
use crate::net::adapter::{Adapter, MANAGER_QPN};
use crate::net::fabric::Fabric;
use crate::net::icmp::Undelivered;
use crate::net::path::{Path, Way};
use crate::net::wire;
use crate::net::wire_errors::count;
use crate::streams::events::Notifiers;
use crate::streams::tickets::{Attached, TicketHold};
use packet::roce::cm::{MAD_LEN, QUEUE_KEY};
use packet::roce::{self, Bth, Datagram, Deth, Opcode, Operation, Service};
use rdma::Mtu;
use rdma::cm::{
    Choice, Client, Config, Event, Limits, Manager, Outgoing, Parameters, PortSpace, Refused, Target,
    Transition, Transport,
};
use ringport::Uplink;
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, SocketType, send};
use sockets::{Closing, Untrusted};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uverbs::cm::{
    CmConnection, CmDatagram, CmEvent, CmGroup, CmOption, CmParameters, CmReply, CmRequest, CmRoute,
};
use uverbs::qp::{access, mask};
use uverbs::{
    AddressVector, Connection, Given, QpAttributes, QpState, QpType, Refusal, Reply, Request, SocketError,
};

/// Exponent of the timeout of queue pairs: half a second, as in Linux. A queue pair waits seven times that for its
/// peer.
const ACK_TIMEOUT: u8 = 17;
/// How long the manager waits before it retries an event for which a program had no room.
const PATIENCE: Duration = Duration::from_millis(10);
/// The most event channels of a device, completion channels included.
const CHANNELS: u32 = 4096;
/// The most sockets for events that are being closed. While there are as many, no more are accepted.
const CLOSING: usize = 64;

/// The connection manager of a device, the inbox of the thread that works for it, and the log of refusals.
#[derive(Debug)]
pub(crate) struct CmService {
    pub cm: ConnectionManager,
    pub inbox: Arc<Inbox<Message>>,
    pub refusals: RefusalLog,
}

/// The connection manager of a device.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    state: Mutex<State>,
    /// Sockets for events that programs gave back.
    closing: Arc<Closing>,
}

#[derive(Debug)]
struct State {
    manager: Manager,
    channels: HashMap<u32, EventChannel>,
    adapter: Arc<Adapter>,
    fabric: Arc<Fabric>,
    uplink: Uplink,
    /// The programs that it serves, and their process numbers.
    clients: BTreeMap<Client, i32>,
    last_client: u64,
    psn: u32,
}

/// An event channel of a program.
#[derive(Debug)]
struct EventChannel {
    client: Client,
    events: Events,
    tag: u32,
    /// The channel's share of the device's budget.
    _reservation: Reservation,
}

/// The way on which a channel's events go to the program.
#[derive(Debug)]
enum Events {
    /// The device's end of a local socket.
    Socket(Untrusted),
    /// A stream, once it is there.
    Stream { attached: Arc<Attached>, stream: Option<Connection>, _hold: TicketHold },
}

impl Events {
    /// Sends an event without waiting.
    ///
    /// # Errors
    /// `EAGAIN` or `ENOBUFS` if the program has no room for it; others if it is gone.
    fn send(&mut self, event: &CmEvent) -> Result<(), Errno> {
        match self {
            Self::Socket(socket) => {
                let Ok(text) = serde_json::to_vec(event) else { return Ok(()) };
                send(socket, &text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
            }
            Self::Stream { attached, stream, .. } => {
                let socket = attached.socket().ok_or(Errno::AGAIN)?;
                let stream =
                    stream.get_or_insert_with(|| Connection::Stream(uverbs::Stream::serving(socket.clone())));
                stream.send(event, &[]).map_err(|error| match error {
                    SocketError::Kernel(errno) => errno,
                    SocketError::Closed | SocketError::Malformed(_) => Errno::PIPE,
                })
            }
        }
    }

    /// Sends the rest of the last event. Returns whether all of it is sent.
    fn flush(&mut self) -> bool {
        match self {
            Self::Stream { stream: Some(Connection::Stream(stream)), .. } => stream.flush().unwrap_or(true),
            _ => true,
        }
    }
}

/// Sends the rest of the last event to each program. Returns whether all of it is sent. A program that reads
/// nothing holds up no other.
fn flush_all<'a>(all: impl Iterator<Item = &'a mut Events>) -> bool {
    all.fold(true, |sent, events| events.flush() & sent)
}

/// The description of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmDescription {
    /// The process number of the program that has it, in the daemon's namespace.
    pub pid: i32,
    /// The manager's description of the identifier.
    pub id: rdma::cm::Description,
}

impl ConnectionManager {
    pub fn new(adapter: Arc<Adapter>, fabric: Arc<Fabric>, uplink: Uplink) -> Self {
        let (config, gids) = {
            let spec = adapter.spec();
            let mtu = Mtu::from_code(spec.active_mtu() as u8).unwrap_or(Mtu::Bytes256);
            let config = Config {
                guid: spec.guid(),
                mtu,
                max_reads: MAX_READS as u8,
                ack_timeout: ACK_TIMEOUT,
                limits: Limits::default(),
            };
            (config, spec.gids())
        };
        let random = || u64::from(random::number()) << 32 | u64::from(random::number());
        let state = State {
            manager: Manager::new(config, gids, Box::new(random)),
            channels: HashMap::new(),
            adapter,
            fabric,
            uplink,
            clients: BTreeMap::new(),
            last_client: 0,
            psn: random::number() & 0xff_ffff,
        };
        Self { state: Mutex::new(state), closing: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the guest's addresses.
    pub fn set_gids(&self, gids: Vec<Ipv6Addr>) {
        self.lock().manager.set_gids(gids);
    }

    /// Receives a packet for queue pair 1.
    pub fn receive(&self, packet: &Packet) {
        let mut state = self.lock();
        let State { manager, adapter, .. } = &mut *state;
        let errors = &adapter.errors;
        let Ok(Datagram { deth: Some(deth), payload, .. }) = roce::parse(&packet.bytes) else {
            return count(&errors.malformed);
        };
        let (from, to) = (packet.header.source, packet.header.destination);
        if deth.queue_key != QUEUE_KEY {
            count(&errors.queue_key);
        } else if from == to && !packet.is_local {
            // A guest's packets to itself never come over the wire.
            count(&errors.forged);
        } else if !manager.receive(monotonic(), from.into(), to.into(), payload) {
            count(&errors.malformed);
        }
    }

    /// Handles the report that the network can't deliver a message of the manager.
    pub fn undelivered(&self, Undelivered { source, destination, head }: &Undelivered) {
        self.lock().manager.undelivered(*source, *destination, head);
    }

    /// Sends datagrams and events that are due. Returns when it must be called again at the latest.
    pub fn work(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now = monotonic();
        let deadline = state.manager.poll(now);
        while let Some(outgoing) = state.manager.next_datagram() {
            state.send(&outgoing);
        }
        let all_told = state.tell();
        if all_told { deadline } else { deadline.into_iter().chain([now + PATIENCE]).min() }
    }

    /// Serves a program until it disconnects. Calls `wake` after each request, so that [`Self::work`] runs soon.
    pub fn serve(
        &self,
        connection: &mut Connection,
        notifiers: &Notifiers,
        pid: i32,
        mut wake: impl FnMut(),
    ) {
        let client = self.lock().come(pid);
        let mut answer: Result<Reply, Refusal> = Ok(Reply::Done);
        let mut ticket: Option<Given> = None;
        while connection.send(&answer, ticket.as_ref().map(Given::lend).as_slice()).is_ok() {
            wake();
            ticket = None;
            answer = match connection.receive::<Request>() {
                Ok((Request::Cm(request), given)) => {
                    // This thread closes descriptors that came with the request, without the lock: closing may take
                    // forever.
                    let mut events = match (&request, notifiers.messages()) {
                        (CmRequest::CreateChannel { .. }, Some((attached, hold))) => {
                            ticket = Some(Given::Stream(hold.ticket));
                            Some(Events::Stream { attached, stream: None, _hold: hold })
                        }
                        _ => self.end_of(given).map(Events::Socket),
                    };
                    let answer = self.lock().handle(client, request, &mut events);
                    drop(events);
                    answer
                }
                Ok(_) => refuse(Errno::PROTO, "not a request to the connection manager"),
                Err(SocketError::Malformed(why)) => refuse(Errno::PROTO, why),
                Err(_) => break,
            };
            ticket = ticket.filter(|_| answer.is_ok());
        }
        self.lock().go(client);
        wake();
    }

    /// Returns the socket for events that came with a request. `None` if it is no such socket, or too many sockets
    /// that programs gave back are still being closed.
    fn end_of(&self, given: Vec<Given>) -> Option<Untrusted> {
        let socket = Given::descriptors(given).next().filter(is_message_socket)?;
        Untrusted::new(socket, &self.closing).ok().filter(|_| self.closing.count() < CLOSING)
    }

    /// Describes the identifiers of all programs.
    pub fn describe(&self) -> Vec<CmDescription> {
        let state = self.lock();
        let pid = |client| state.clients.get(&client).copied().unwrap_or_default();
        state.manager.describe().map(|(client, id)| CmDescription { pid: pid(client), id }).collect()
    }
}

impl State {
    fn come(&mut self, pid: i32) -> Client {
        self.last_client += 1;
        let client = Client(self.last_client);
        self.clients.insert(client, pid);
        client
    }

    fn go(&mut self, client: Client) {
        self.manager.remove_client(monotonic(), client);
        self.channels.retain(|_, channel| channel.client != client);
        self.clients.remove(&client);
    }

    /// Sends a message to another manager.
    fn send(&mut self, outgoing: &Outgoing) {
        let gid = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let source = gid(outgoing.source);
        let index = self.adapter.spec().gids().iter().position(|own| *own == source);
        let vector = AddressVector {
            dgid: gid(outgoing.destination),
            // The guest may have lost this address meanwhile: no GID has this index.
            sgid_index: index.map_or(u32::MAX, |index| index as u32),
            is_global: true,
            ..AddressVector::default()
        };
        // If there is no path, the manager sends the message again, and gives up in the end.
        let Ok(path) = Path::to_peer(&vector, &self.adapter, &self.fabric) else { return };
        self.psn = (self.psn + 1) & 0xff_ffff;
        let Some(bytes) = management_datagram(self.psn, &outgoing.mad) else { return };
        match &path.way {
            Way::Wire | Way::Group => {
                if wire::send(&self.uplink, &path, source_port(0, MANAGER_QPN, MANAGER_QPN), &bytes) {
                    self.uplink.ring();
                }
            }
            Way::Local(adapter) => {
                if let Some(inbox) = adapter.owner(MANAGER_QPN) {
                    let packet = Packet { qpn: MANAGER_QPN, header: path.header, is_local: true, bytes };
                    inbox.put(packet, &mut Vec::new());
                }
            }
        }
    }

    /// Sends events to programs. Returns whether all of them had room.
    fn tell(&mut self) -> bool {
        let (mut all, channels) = (true, &mut self.channels);
        let mut gone = BTreeSet::new();
        self.manager.deliver(|event| {
            let Some(channel) = channels.get_mut(&event.channel) else { return true };
            match channel.events.send(&described(event, channel.tag)) {
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    all = false;
                    false
                }
                Err(_) => {
                    gone.insert(event.channel);
                    true
                }
                Ok(()) => true,
            }
        });
        all &= flush_all(self.channels.values_mut().map(|channel| &mut channel.events));
        self.channels.retain(|channel, _| !gone.contains(channel));
        all
    }

    fn handle(
        &mut self,
        client: Client,
        request: CmRequest,
        events: &mut Option<Events>,
    ) -> Result<Reply, Refusal> {
        self.try_handle(client, request, events)
            .map_err(|refused| Refusal { errno: refused.errno(), message: refused.to_string() })
    }

    fn try_handle(
        &mut self,
        client: Client,
        request: CmRequest,
        events: &mut Option<Events>,
    ) -> Result<Reply, Refused> {
        use CmRequest as R;
        let (manager, now) = (&mut self.manager, monotonic());
        match request {
            R::Hello { .. } => return Err(Refused::State),
            R::CreateChannel { tag } => {
                let held = self.adapter.budget.take(Kind::Channel, 0, CHANNELS);
                let held = held.map_err(|_| Refused::TooMany)?;
                let events = events.take().ok_or(Refused::Parameter)?;
                let channel = manager.create_channel(client)?;
                self.channels.insert(channel, EventChannel { client, events, tag, _reservation: held });
                return Ok(Reply::Handle(channel));
            }
            R::DestroyChannel { channel } => {
                manager.destroy_channel(now, client, channel)?;
                self.channels.remove(&channel);
            }
            R::CreateId { channel, port_space, qp_type } => {
                let space = PortSpace::from_number(port_space).ok_or(Refused::Parameter)?;
                return manager.create_id(client, channel, space, transport(qp_type)).map(Reply::Handle);
            }
            R::DestroyId { id } => manager.destroy_id(now, client, id)?,
            R::MigrateId { id, channel } => manager.migrate_id(client, id, channel)?,
            R::SetOption { id, option } => manager.set_option(client, id, choice(option))?,
            R::BindAddr { id, address } => {
                return manager.bind_addr(client, id, address).map(|bound| Reply::Cm(CmReply::Bound(bound)));
            }
            R::ResolveAddr { id, source, destination } => {
                // Whether packets reach the address turns out when they are sent.
                manager.resolve_addr(client, id, source, destination, |_, _| true)?;
            }
            R::ResolveRoute { id } => manager.resolve_route(client, id)?,
            R::Listen { id, backlog } => manager.listen(client, id, backlog)?,
            R::Connect { id, parameters } => manager.connect(now, client, id, &wanted(parameters))?,
            R::Establish { id } => manager.establish(client, id)?,
            R::Accept { id, parameters } => manager.accept(now, client, id, &wanted(parameters))?,
            R::Reject { id, reason, private } => manager.reject(client, id, reason, &private)?,
            R::Disconnect { id } => manager.disconnect(now, client, id)?,
            R::Notify { id } => manager.notify(client, id)?,
            R::JoinMulticast { id, address, join } => manager.join_multicast(client, id, address, join)?,
            R::InitQpAttr { id, state } => {
                let target = target(state).ok_or(Refused::Parameter)?;
                let (mask, attributes) = told(manager.transition(client, id, target)?, state);
                return Ok(Reply::Cm(CmReply::QpAttributes { mask, attributes }));
            }
        }
        Ok(Reply::Done)
    }
}

/// Is true if messages can be sent to this socket without waiting for anybody: with other kinds of sockets, senders
/// may wait for a lock that the owner holds.
fn is_message_socket(descriptor: &OwnedFd) -> bool {
    socket_domain(descriptor) == Ok(AddressFamily::UNIX)
        && socket_type(descriptor) == Ok(SocketType::SEQPACKET)
}

/// Writes a datagram from queue pair 1 to queue pair 1.
fn management_datagram(psn: u32, mad: &[u8; MAD_LEN]) -> Option<Vec<u8>> {
    let bth = Bth {
        opcode: Opcode::Of(Service::Ud, Operation::SendOnly),
        solicited: false,
        migrated: true,
        partition: PARTITION,
        forward_congestion: false,
        backward_congestion: false,
        destination: MANAGER_QPN.0,
        acknowledge: false,
        psn,
    };
    let deth = Some(Deth { queue_key: QUEUE_KEY, source: MANAGER_QPN.0 });
    let mut bytes = vec![0; MAD_LEN + 64];
    let len = roce::write(&Datagram { deth, ..Datagram::new(bth, mad) }, &mut bytes).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

const fn transport(kind: QpType) -> Transport {
    match kind {
        QpType::Rc => Transport::Reliable,
        QpType::Uc => Transport::Unreliable,
        QpType::Ud => Transport::Datagram,
    }
}

const fn choice(option: CmOption) -> Choice {
    match option {
        CmOption::TypeOfService(tos) => Choice::TypeOfService(tos),
        CmOption::ReuseAddress(may) => Choice::ReuseAddress(may),
        CmOption::OnlyIpv6(only) => Choice::OnlyIpv6(only),
        CmOption::AckTimeout(exponent) => Choice::AckTimeout(exponent),
    }
}

fn wanted(of: CmParameters) -> Parameters {
    Parameters {
        queue_pair: of.qp_num,
        queue_key: of.qkey,
        shared_receives: of.srq,
        responder_resources: of.responder_resources,
        initiator_depth: of.initiator_depth,
        flow_control: of.flow_control,
        retries: of.retry_count,
        rnr_retries: of.rnr_retry_count,
        private: of.private,
    }
}

const fn target(state: u32) -> Option<Target> {
    Some(match QpState::from_number(state) {
        Some(QpState::Init) => Target::Init,
        Some(QpState::ReadyToReceive) => Target::ReadyToReceive,
        Some(QpState::ReadyToSend) => Target::ReadyToSend,
        _ => return None,
    })
}

/// Returns the attributes that a queue pair needs for a transition, in the form of `ibv_modify_qp`.
fn told(transition: Transition, state: u32) -> (u32, QpAttributes) {
    let port = PORT;
    let mut of = QpAttributes { qp_state: state, ..QpAttributes::default() };
    let mask = mask::STATE
        | match transition {
            Transition::Init { writes, reads } => {
                of.port_num = port;
                let write = if writes { access::REMOTE_WRITE } else { 0 };
                let read = if reads { access::REMOTE_READ | access::REMOTE_ATOMIC } else { 0 };
                of.qp_access_flags = access::LOCAL_WRITE | write | read;
                mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS
            }
            Transition::InitDatagram { queue_key } => {
                (of.port_num, of.qkey) = (port, queue_key);
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
                of.ah = AddressVector {
                    dgid: destination,
                    sgid_index: source_index,
                    traffic_class,
                    hop_limit,
                    port_num: port as u8,
                    is_global: true,
                    ..AddressVector::default()
                };
                (of.path_mtu, of.dest_qp_num, of.rq_psn) = (mtu as u32, queue_pair, psn);
                let (reads, timer) = reliable.unwrap_or_default();
                (of.max_dest_rd_atomic, of.min_rnr_timer) = (reads.into(), timer.into());
                let both = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
                both | reliable.map_or(0, |_| mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)
            }
            Transition::ReadyToSend { psn, reliable } => {
                of.sq_psn = psn;
                let Some(retrying) = reliable else { return (mask::STATE | mask::SQ_PSN, of) };
                (of.timeout, of.retry_cnt) = (retrying.timeout.into(), retrying.retries.into());
                (of.rnr_retry, of.max_rd_atomic) = (retrying.rnr_retries.into(), retrying.reads.into());
                let retries = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
                mask::SQ_PSN | retries | mask::MAX_QP_RD_ATOMIC
            }
        };
    (mask, of)
}

fn described(event: &Event, tag: u32) -> CmEvent {
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
        connection: event.connection.map(|of| CmConnection {
            qp_num: of.queue_pair,
            srq: of.shared_receives,
            responder_resources: of.responder_resources,
            initiator_depth: of.initiator_depth,
            flow_control: of.flow_control,
            retry_count: of.retries,
            rnr_retry_count: of.rnr_retries,
        }),
        datagram: event.datagram.map(|of| CmDatagram { qp_num: of.queue_pair, qkey: of.queue_key }),
        group: event.group.map(|group| CmGroup { join: group.join, gid: group.gid }),
        private: event.private.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::streams::tickets::{Origin, Purpose, Tickets};
    use rustix::net::{RecvFlags, SocketFlags, recv, socketpair};

    /// Returns a channel whose stream is full, because its program has not read, and the program's end.
    fn full() -> (Events, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let ours = Arc::new(Untrusted::new(ours, &Arc::default()).unwrap());
        let mut stream = Connection::Stream(uverbs::Stream::serving(ours));
        while !stream.has_unsent() {
            stream.send(&"x".repeat(30_000), &[]).unwrap();
        }
        let (attached, origin) = (Arc::<Attached>::default(), Origin { listener: 1, machine: None });
        let hold = Arc::<Tickets>::default().issue(origin, Purpose::Events(attached.clone()));
        (Events::Stream { attached, stream: Some(stream), _hold: hold }, theirs)
    }

    #[test]
    fn a_program_that_reads_nothing_holds_up_no_other() {
        let ((mut one, _unread), (mut other, theirs)) = (full(), full());
        let mut bytes = vec![0; 1 << 16];
        let mut read = || recv(&theirs, &mut bytes[..], RecvFlags::DONTWAIT).map(|(_, len)| len);
        while read().is_ok() {}
        assert!(!flush_all([&mut one, &mut other].into_iter()));
        assert!(read().unwrap() > 0);
    }
}
