//! The device's part of memory shared between trusting peers. An application gets descriptors of the peer's queues, so
//! that it can put messages there itself (`verbs/src/direct.rs`). The device ends this when anything changes.
//!
//! An application's thread sends a question to the thread of the peer's application, which alone knows whether its
//! queue pair is ready. The answer comes back as a question, too, so that no thread waits for another.

use crate::carry::Surroundings;
use crate::client::Client;
use crate::control::{guarded_memory, refuse};
use crate::events::Event;
use crate::fabric::DeviceSpec;
use crate::holders::{Given, Process};
use crate::inbox::Inbox;
use crate::objects::Objects;
use crate::parting::Inbound;
use crate::path::{Path, Way};
use crate::qp::{Own, Qp, Receives};
use crate::questions::{Question, Ticket};
use rustix::io::Errno;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uverbs::{Bond, DirectPeer, Memory, Point, QpState, QpType, Refusal, Reply, TAKERS, point};

/// How long to wait for the answer of a peer.
const PATIENCE: Duration = Duration::from_millis(100);

/// What an application asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The queues of a queue pair.
    Peer,
    /// The file of the region with this key.
    Pages(u32),
    /// All memory of the peer's process.
    Memory,
}

/// A request to share memory with a queue pair and its application.
#[derive(Debug)]
pub(crate) struct Wish {
    /// The queue pair.
    pub qpn: u32,
    pub wanted: Wanted,
    /// Who asks: GID and number of its queue pair.
    pub from: (Ipv6Addr, u32),
    pub uid: u32,
    pub trust: String,
    pub process: Arc<Process>,
    /// The thread that gets the answer.
    pub inbox: Arc<Inbox>,
    pub ticket: Ticket,
}

/// A request whose answer has not come yet.
#[derive(Debug)]
pub(crate) struct Awaited {
    qpn: u32,
    pub until: Duration,
    ticket: Arc<()>,
}

/// What an application is given.
#[derive(Debug)]
pub(crate) enum Grant {
    Peer(Box<PeerGrant>),
    /// Address and length of a region's pages, and their file.
    Pages((u64, u64), OwnedFd),
    /// Number and token of a process, and its `/proc/self/mem`.
    Memory((i32, u64), OwnedFd),
}

/// A queue pair that is shared, and the descriptors to send with it.
#[derive(Debug)]
pub(crate) struct PeerGrant {
    pub peer: DirectPeer,
    /// In the order that [`DirectPeer`] says. Those of the asking application's own queues come between `files` and
    /// `last`.
    pub bond_file: OwnedFd,
    pub files: Vec<OwnedFd>,
    pub last: Vec<OwnedFd>,
}

/// An answer to a [`Wish`].
#[derive(Debug)]
pub(crate) struct Granted {
    pub ticket: Ticket,
    pub grant: Option<Grant>,
}

/// Whether a device shares memory at all: it has a trust, and nobody watches its packets.
pub(crate) fn is_trusting(spec: &DeviceSpec) -> bool {
    spec.trust.is_some() && !spec.is_watched
}

/// Messages and bytes that applications copied to their peers themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Brought {
    pub sent: (u64, u64),
    pub received: (u64, u64),
}

impl Brought {
    /// More, received or sent.
    pub fn add(&mut self, received: bool, more: (u64, u64)) {
        add(if received { &mut self.received } else { &mut self.sent }, more);
    }
}

fn add(sum: &mut (u64, u64), (messages, bytes): (u64, u64)) {
    *sum = (sum.0.wrapping_add(messages), sum.1.wrapping_add(bytes));
}

impl Own {
    /// All messages that this application, or its peers, copied themselves.
    pub fn brought(&self) -> Brought {
        let mut brought = self.brought;
        self.outbound.iter().for_each(|bond| add(&mut brought.sent, bond.counted()));
        self.inbound.iter().for_each(|inbound| add(&mut brought.received, inbound.bond.counted()));
        brought
    }

    /// Whether the trust in which memory was shared still holds. True if none was shared.
    fn is_trusted(&self, own: &DeviceSpec) -> bool {
        let Some(trust) = &self.shared_in else { return true };
        let trusts = |spec: &DeviceSpec| is_trusting(spec) && spec.trust.as_ref() == Some(trust);
        let Some(Path { way: Way::Local(adapter), .. }) = &self.path else { return false };
        trusts(own) && trusts(&adapter.spec())
    }

    /// The thread of the peer, if memory may be shared with it.
    pub fn partner(&self) -> Option<Arc<Inbox>> {
        let Some(Path { way: Way::Local(adapter), .. }) = &self.path else { return None };
        self.shared_in.as_ref().and_then(|_| adapter.owner(self.attributes.dest_qp_num))
    }

    /// The thread of the peer into whose queues the application puts messages.
    pub fn shares_with(&self) -> Option<Arc<Inbox>> {
        self.outbound.as_ref().and_then(|_| self.partner())
    }

    fn is_bonded_with(&self, from: (Ipv6Addr, u32)) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend) && self.is_peer(from)
    }

    /// Asks the peer's thread to notify the peer's completion channel.
    pub fn tell_peer(&self) {
        let peer = self.attributes.dest_qp_num;
        if let Some(Path { network, way: Way::Local(adapter), .. }) = &self.path
            && let Some(inbox) = adapter.owner(peer)
        {
            inbox.ask(Question::Tell(peer, (network.source, self.qpn)));
        }
    }

    /// Whether it is connected with this queue pair, and both are on this host.
    pub fn is_peer(&self, from: (Ipv6Addr, u32)) -> bool {
        self.kind == QpType::Rc
            && self.attributes.dest_qp_num == from.1
            && matches!(&self.path, Some(Path { network, way: Way::Local(_), .. }) if network.destination == from.0)
    }
}

/// Decides about a request to share memory with this application, which has this process, user and token. Returns what
/// to give, or `None` to refuse.
pub(crate) fn grant(
    qp: Option<&mut Qp>,
    wish: &Wish,
    (process, uid, token): (&Arc<Process>, u32, u64),
    objects: &mut Objects,
) -> Option<Grant> {
    let own = &mut qp?.own;
    let trusts = {
        let spec = objects.adapter.spec();
        is_trusting(&spec) && spec.trust.as_ref() == Some(&wish.trust) && uid == wish.uid
    };
    if !trusts || !own.is_bonded_with(wish.from) {
        return None;
    }
    let (granted, given) = match wish.wanted {
        Wanted::Peer => (Grant::Peer(share(own, &wish.process, objects)?), Given::Queues),
        _ if own.inbound.is_none() => return None,
        Wanted::Pages(key) => {
            let shared = objects.regions.shared(key)?;
            (Grant::Pages(shared.pages.range(), shared.file.try_clone().ok()?), Given::Regions)
        }
        Wanted::Memory => {
            (Grant::Memory((process.pid, token), objects.space.share().ok()?), Given::Everything)
        }
    };
    own.shared_in = Some(wish.trust.clone());
    let is_noted = objects.adapter.holders.note(&wish.process, process, given, &wish.trust);
    point(Point::Granted);
    is_noted.then_some(granted)
}

/// Prepares a queue pair for messages that its peer puts there itself.
fn share(own: &mut Own, with: &Arc<Process>, objects: &mut Objects) -> Option<Box<PeerGrant>> {
    let cq = objects.cqs.get(&own.recv_cq).filter(|cq| !cq.overrun)?;
    let channel = match cq.channel {
        Some(channel) => Some(objects.channels.get(&channel)?.notifier.share().ok()?),
        None => None,
    };
    let (receive, shared) = match own.receives {
        Receives::Own(_) => (own.receive_shape?, None),
        Receives::Shared(srq) => {
            let srq = objects.srqs.get(&srq).filter(|_| own.taker < TAKERS)?;
            (srq.shape, Some(srq.file.try_clone().ok()?))
        }
    };
    let (memory, bond_file) = guarded_memory("bond", Bond::BYTES, &objects.fault).ok()?;
    let peer = DirectPeer {
        qpn: own.qpn,
        pd: own.pd,
        access: own.attributes.qp_access_flags,
        receive,
        takes_shared: own.takes_shared(),
        taker: own.taker,
        parcels: own.parcels.as_ref()?.1,
        memory: own.memory,
        cq: own.recv_cq,
        entries: cq.entries,
        regions: objects.regions.limit,
        own_regions: 0,
        own_entries: 0,
        has_channel: channel.is_some(),
    };
    let files =
        vec![own.file.try_clone().ok()?, cq.file.try_clone().ok()?, objects.regions.file.try_clone().ok()?];
    let last = channel.into_iter().chain(shared).collect();
    // The peer asked anew, so it does not use an older bond any more.
    if own.inbound.is_some() {
        own.part(objects);
    }
    own.inbound = Some(Inbound::new(Bond::new(memory), with.clone()));
    // Its first packet would say that the connection is established. No packets will come.
    Surroundings { own, objects }.hear();
    Some(Box::new(PeerGrant { peer, bond_file, files, last }))
}

impl Client {
    /// Asks the peer of a queue pair to share memory. The application gets its answer from [`Self::granted`] or
    /// [`Self::give_up`].
    pub(crate) fn wish(&mut self, qpn: u32, wanted: Wanted) -> Result<(), Refusal> {
        let spec = self.objects.adapter.spec().clone();
        let process = self.process();
        let Some(own) = self.qps.get(&qpn).map(|qp| &qp.own) else {
            return refuse(Errno::INVAL, "there is no such queue pair");
        };
        let not_ready = || refuse(Errno::AGAIN, "the peer is not ready");
        let (Some(Path { network, way: Way::Local(adapter), .. }), Some(trust)) = (&own.path, &spec.trust)
        else {
            return refuse(Errno::PERM, "the peer does not share memory with this guest");
        };
        if own.kind != QpType::Rc || own.state != QpState::ReadyToSend || !is_trusting(&spec) {
            return refuse(Errno::PERM, "the queue pair does not share memory");
        }
        let Some(peer) = adapter.owner(own.attributes.dest_qp_num) else { return not_ready() };
        let Some(process) = process else { return not_ready() };
        let ticket = Arc::new(());
        let wish = Wish {
            qpn: own.attributes.dest_qp_num,
            wanted,
            from: (network.source, qpn),
            uid: self.uid,
            trust: trust.clone(),
            process,
            inbox: self.objects.inbox.clone(),
            ticket: Arc::downgrade(&ticket),
        };
        if !peer.ask(Question::Direct(Box::new(wish))) {
            return not_ready();
        }
        self.awaited = Some(Awaited { qpn, until: crate::client::monotonic() + PATIENCE, ticket });
        Ok(())
    }

    /// The answer to the application if the peer has not answered in time.
    pub(crate) fn give_up(&mut self) -> Option<Result<(Reply, Vec<OwnedFd>), Refusal>> {
        let awaited = self.awaited.as_ref()?;
        self.granted(Granted { ticket: Arc::downgrade(&awaited.ticket), grant: None })
    }

    /// The answer to the application after the peer has answered. `None` if nobody waits for this answer.
    pub(crate) fn granted(&mut self, granted: Granted) -> Option<Result<(Reply, Vec<OwnedFd>), Refusal>> {
        let is_its = |awaited: &mut Awaited| granted.ticket.as_ptr() == Arc::as_ptr(&awaited.ticket);
        let Awaited { qpn, .. } = self.awaited.take_if(is_its)?;
        let refused = || Some(refuse(Errno::AGAIN, "the peer is not ready, or shares no memory"));
        let mut grant = match granted.grant {
            Some(Grant::Peer(grant)) => grant,
            Some(Grant::Pages((address, len), file)) => {
                return Some(Ok((Reply::Pages { address, len }, vec![file])));
            }
            Some(Grant::Memory((pid, token), file)) => {
                return Some(Ok((Reply::Memory { pid, token }, vec![file])));
            }
            None => return refused(),
        };
        let own = self.qps.get_mut(&qpn).map(|qp| &mut qp.own);
        let Some(own) = own.filter(|own| own.state == QpState::ReadyToSend) else { return refused() };
        let bond = Memory::open(&grant.bond_file, Bond::BYTES);
        let Ok(bond) = bond.and_then(|memory| memory.guarded(&self.objects.fault)) else { return refused() };
        let Some(cq) = self.objects.cqs.get(&own.send_cq) else { return refused() };
        let (Ok(cq_file), Ok(regions)) = (cq.file.try_clone(), self.objects.regions.file.try_clone()) else {
            return refused();
        };
        (grant.peer.own_regions, grant.peer.own_entries) = (self.objects.regions.limit, cq.entries);
        own.shared_in = self.objects.adapter.spec().trust.clone();
        if let Some(old) = own.outbound.replace(Bond::new(bond)) {
            add(&mut own.brought.sent, old.counted());
        }
        let mut files = vec![grant.bond_file];
        files.append(&mut grant.files);
        files.extend([regions, cq_file]);
        files.append(&mut grant.last);
        Some(Ok((Reply::Direct(grant.peer), files)))
    }

    /// Looks up all paths again. All sharing ends, and applications ask for it again. A connection that was within this
    /// host and may not be any more goes to the error state: packets over the wire would be cut and numbered otherwise.
    pub(crate) fn review(&mut self) {
        let (adapter, fabric) = (self.objects.adapter.clone(), self.objects.fabric.clone());
        let is_local = |path: &Path| matches!(path.way, Way::Local(_));
        let mut ended = Vec::new();
        let spec = adapter.spec().clone();
        self.part_all();
        for qp in self.qps.values_mut() {
            let was_local = qp.own.path.as_ref().is_some_and(is_local);
            let found = Path::to_peer(&qp.own.attributes.ah, &adapter, &fabric);
            let reason = if was_local && !found.as_ref().is_ok_and(is_local) {
                Some("its peer may not be reached within the host any more")
            } else if !qp.own.is_trusted(&spec) {
                Some("the trust in which it shared memory with its peer was taken away")
            } else {
                None
            };
            if let Some(reason) = reason {
                qp.own.reason = Some(reason);
                self.objects.tell(Event::QpFatal, qp.own.qpn);
                qp.enter_error(&mut self.objects);
                ended.push(qp.own.qpn);
            }
        }
        ended.into_iter().for_each(|qpn| self.wake(qpn));
        for ah in self.objects.ahs.values_mut() {
            if let Ok(path) = Path::find(&ah.vector, &adapter, &fabric) {
                ah.path = path;
            }
        }
    }

    /// Ends all sharing.
    fn part_all(&mut self) {
        self.qps.values().for_each(|qp| qp.own.close_bonds());
        self.qps.values_mut().for_each(|qp| qp.own.part(&mut self.objects));
    }

    /// Its process, by which the device remembers who holds whose memory.
    pub(crate) fn process(&mut self) -> Option<Arc<Process>> {
        if self.process.is_none() {
            let adapter = &self.objects.adapter;
            let guest = adapter.spec().guest.clone();
            self.process = adapter.holders.process(self.pid, &guest, &adapter.account);
        }
        self.process.clone()
    }

    /// Ends the sharing of all queue pairs that receive from a shared queue.
    pub(crate) fn part_from_srq(&mut self, srq: u32) {
        let uses = |qp: &&mut Qp| qp.own.takes_from(srq);
        self.qps.values_mut().filter(uses).for_each(|qp| qp.own.part(&mut self.objects));
    }

    /// Ends the sharing of all queue pairs that use a completion queue.
    pub(crate) fn part_from_cq(&mut self, cq: u32) {
        let uses = |qp: &&mut Qp| qp.own.send_cq == cq || qp.own.recv_cq == cq;
        self.qps.values_mut().filter(uses).for_each(|qp| qp.own.part(&mut self.objects));
    }
}
