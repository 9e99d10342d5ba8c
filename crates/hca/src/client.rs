//! Owns the thread of an application, its requests and its sleep. May import `cm`, `qp` and what stands below them.
//!
//! The thread handles the application's requests, runs the transport of its queue pairs, and is the only thread
//! that touches the application's memory, since a page of it may never arrive. Pages of windows are always present,
//! so other threads may stand in for it (`run`).

mod control;
mod create;
mod deferred;
mod destroy;
mod doorbells;
mod memory;
mod multicast;
mod pace;
mod poll_set;
mod polled;
mod query;
mod run;
mod sharing;

use crate::base::budget::Reservation;
use crate::base::clock::monotonic;
use crate::base::counters::Counter;
use crate::base::ids::{ById, Key, Qpn};
use crate::base::limits::PORT;
use crate::base::refusal::Answer;
use crate::base::threads::Nice;
use crate::client::doorbells::Bells;
use crate::cm::CmService;
use crate::context::{Context, NewContext};
use crate::inbox::message::{Message, SharedPart, SharingAnswer};
use crate::inbox::{Arrivals, Inbox};
use crate::memory::address_space::{AddressSpace, NotMemory};
use crate::memory::regions::Regions;
use crate::net::adapter::Adapter;
use crate::net::fabric::Fabric;
use crate::program::description::ClientDescription;
use crate::program::grants::Process;
use crate::program::who::Who;
use crate::qp::Qp;
use crate::streams::events::{Event, Notifiers};
use crate::streams::tickets::TicketHold;
use crate::transfer::grant::{Granter, grant};
use crate::transfer::unshare::AGAIN;
use crate::window::source::{DeviceWindows, MemoryBacking, MemorySource, NoSource};
use deferred::Deferred;
use pace::Pace;
use polled::PolledQps;
use ringport::Uplink;
use run::{Listener, Sleep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sharing::PendingAnswer;
use sockets::Untrusted;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use uverbs::cm::CmRequest;
use uverbs::{
    Connection, Doorbells, Given, Point, Refusal, Reply, Request, SocketError, Uuid, VERSION, Welcome, point,
};

/// Rounds of work before the thread checks the control socket.
const ROUNDS: u32 = 64;
/// Most packets taken before queue pairs have their turn.
const PACKETS: usize = 256;
/// How long the thread waits before it retries events for which the application had no room.
const EVENT_PATIENCE: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("{0}")]
    Socket(#[from] SocketError),
    #[error("{0}")]
    Kernel(#[from] rustix::io::Errno),
    #[error("{0}")]
    Memory(#[from] uverbs::MemoryError),
    #[error("{0}")]
    NoSource(#[from] NoSource),
    #[error("{0}")]
    NotMemory(#[from] NotMemory),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("the first message is not a greeting")]
    NoGreeting,
    #[error(
        "the library speaks version {0} of the protocol, this daemon version {VERSION}; use the library that came with it"
    )]
    Version(u32),
}

impl AttachError {
    fn refusal(&self) -> Refusal {
        use rustix::io::Errno;
        let errno = match self {
            Self::Version(_) => Errno::PROTONOSUPPORT,
            Self::NotMemory(_) => Errno::BADF,
            Self::Kernel(errno) => *errno,
            Self::Refused(refusal) => return refusal.clone(),
            _ => Errno::PROTO,
        };
        Refusal { errno: errno.raw_os_error(), message: self.to_string() }
    }
}

/// The state with which a client's thread starts.
pub(crate) struct NewClient {
    pub connection: Connection,
    /// The socket of `connection`.
    pub socket: Arc<Untrusted>,
    pub notifiers: Notifiers,
    pub adapter: Arc<Adapter>,
    pub fabric: Arc<Fabric>,
    pub inbox: Arc<Inbox<Message>>,
    pub uplink: Uplink,
    pub manager: Arc<CmService>,
    pub who: Who,
    /// The client's share of the device's budget.
    pub reservation: Reservation,
}

/// The state of an application once it is greeted.
struct Greeted {
    context: Context,
    wake: Option<TicketHold>,
    doorbells: Doorbells,
    token: u64,
}

/// An application, as its thread serves it.
pub(crate) struct Client {
    connection: Connection,
    pub(crate) context: Context,
    pub(crate) qps: ById<Qpn, Qp>,
    /// The queue pair that each doorbell belongs to.
    pub(crate) bells: Bells,
    pub(crate) doorbells: Doorbells,
    /// The packets and messages that were taken out of the inbox.
    arrivals: Arrivals<Message>,
    ready: VecDeque<Qpn>,
    timers: BTreeSet<(Duration, Qpn)>,
    /// True while the thread sleeps, until `sleeps_until`.
    sleeps: bool,
    sleeps_until: Duration,
    listener: Arc<Listener>,
    polled: PolledQps,
    /// The request to share memory that a peer has not answered yet.
    pub(crate) awaited: Option<PendingAnswer>,
    /// The request that waits until peers have finished.
    pub(crate) deferred: Option<Deferred>,
    pub(crate) process: Option<Arc<Process>>,
    nice: Nice,
    /// Address of bytes in the application's memory by which peers that share memory recognise it.
    token: u64,
    pub(crate) who: Who,
    /// Makes the sockets or streams that carry events to the application.
    pub(crate) notifiers: Notifiers,
    /// The ticket of the stream that wakes the thread.
    _wake: Option<TicketHold>,
    /// Exists as long as the client: processes in virtual machines count as ended once it is gone.
    pub(crate) life: Arc<()>,
    /// The client's share of the device's budget.
    _reservation: Reservation,
}

impl NewClient {
    /// Greets the application and serves it until it disconnects.
    pub fn serve(mut self) {
        let (inbox, adapter) = (self.inbox.clone(), self.adapter.clone());
        let mut nice = Nice::of_thread();
        adapter.threads.join();
        nice.follow(&adapter.threads);
        match self.welcome().and_then(|()| self.greet()) {
            Ok(Some(greeted)) => {
                let socket = self.socket.clone();
                run::run(self.client(greeted, nice), &socket);
            }
            Ok(None) => {
                self.manager.cm.serve(&mut self.connection, &self.notifiers, self.who.pid(), || {
                    nice.follow(&adapter.threads);
                    self.manager.inbox.wake();
                });
            }
            Err(error) => {
                self.manager.refusals.tell(&error);
                let _ = self.connection.send(&Err::<Reply, _>(error.refusal()), &[]);
            }
        }
        inbox.close();
        adapter.threads.leave();
    }

    /// Tells a program in a virtual machine that it is accepted.
    fn welcome(&mut self) -> Result<(), AttachError> {
        if self.who.is_remote() {
            let common = self.adapter.common_window().map(|window| window.uuid());
            self.connection.send(&Ok::<_, Refusal>(Welcome::Accepted { common }), &[])?;
        }
        Ok(())
    }

    /// Receives the greeting and answers it. `None` if the application wants the connection manager, which answers
    /// itself.
    fn greet(&mut self) -> Result<Option<Greeted>, AttachError> {
        let (message, given) = self.connection.receive::<Request>()?;
        let (version, greeting) = match message {
            Request::Hello { version, token, program } => (version, Some((token, program))),
            Request::Cm(CmRequest::Hello { version }) => (version, None),
            _ => return Err(AttachError::NoGreeting),
        };
        if version != VERSION {
            return Err(AttachError::Version(version));
        }
        let Some((token, program)) = greeting else { return Ok(None) };
        let space = if self.who.is_remote() {
            AddressSpace::none()
        } else {
            AddressSpace::new(Given::descriptors(given).next().ok_or(NotMemory)?)?
        };
        let (asynchronous, theirs) = self.notifiers.create()?;
        let source = Arc::new(self.source(program)?);
        let mut info = self.adapter.spec().info();
        info.is_trusting &= source.is_common();
        info.program = source.program();
        info.suspects = source.suspects();
        let (memory, backing) = source.memory("doorbells", Doorbells::bytes(info.doorbells))?;
        let wake = self.notifiers.wake(&self.inbox);
        let waking = match &wake {
            Some(hold) => Given::Stream(hold.ticket),
            None => self.inbox.share()?.into(),
        };
        let doorbells = Doorbells::new(memory, info.doorbells);
        let along = [backing.give_owner(&source.reach)?, waking, theirs];
        let limit = self.adapter.spec().limits.mrs;
        let regions = Regions::new(limit, self.adapter.registered.clone(), &source)?;
        // From here on, messages and packets may arrive.
        self.inbox.open();
        self.connection.send(&Ok::<_, Refusal>(Reply::Device(info)), &along.each_ref().map(Given::lend))?;
        let context = Context::new(NewContext {
            adapter: self.adapter.clone(),
            fabric: self.fabric.clone(),
            inbox: self.inbox.clone(),
            uplink: self.uplink.clone(),
            space,
            regions,
            asynchronous,
            source,
        });
        Ok(Some(Greeted { context, wake, doorbells, token }))
    }

    /// Opens the source of memory for the application.
    fn source(&self, secret: Uuid) -> Result<MemorySource, NoSource> {
        let DeviceWindows { own, .. } = self.adapter.windows();
        let windows = DeviceWindows { own, common: self.adapter.common_window() };
        let note = self.who.note(&self.adapter.spec().guest, secret, self.adapter.vmm());
        let program = self.fabric.programs.pages_of(secret);
        MemorySource::new(self.who.reach(windows), note, self.who.program(), program)
    }

    fn client(self, Greeted { context, wake, doorbells, token }: Greeted, nice: Nice) -> Client {
        Client {
            connection: self.connection,
            context,
            qps: ById::default(),
            bells: Bells::default(),
            doorbells,
            arrivals: Arrivals::default(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            sleeps: false,
            sleeps_until: Duration::ZERO,
            listener: Arc::default(),
            polled: PolledQps::default(),
            awaited: None,
            deferred: None,
            process: None,
            nice,
            token,
            who: self.who,
            notifiers: self.notifiers,
            _wake: wake,
            life: Arc::new(()),
            _reservation: self.reservation,
        }
    }
}

impl Client {
    /// Works until there is nothing to do, and the thread is to sleep. Returns `None` if the application is gone,
    /// or is given up.
    fn work_until_idle(&mut self, pace: &mut Pace) -> Option<Sleep> {
        // If its memory is always present, others may work for it while its thread polls (`run`).
        let mut rounds = 0_u32;
        loop {
            let now = monotonic();
            let mut busy = self.take_packets(now);
            if std::mem::take(&mut self.arrivals.messages)
                .into_iter()
                .any(|message| self.handle_message(message))
            {
                return None;
            }
            busy |= self.hear_doorbells();
            busy |= self.work(now);
            self.context.announce_frames();
            if self.awaited.as_ref().is_some_and(|awaited| now >= awaited.until) {
                // The peer has not answered in time.
                let _ = self.give_up().map(|reply| self.reply(reply));
            }
            if self.is_unsharing() && self.continue_request().is_err() {
                return None;
            }
            if self.context.source.is_faulty() {
                tracing::debug!(
                    who = ?self.who,
                    "verbs: memory that an application shared went away; it is given up"
                );
                self.context.source.mend();
                return None;
            }
            if busy {
                pace.work(now);
            }
            let goes_on = busy || self.context.may_wait() && pace.polls(now);
            rounds = rounds.wrapping_add(1);
            if goes_on && !rounds.is_multiple_of(ROUNDS) {
                continue;
            }
            self.nice.follow(&self.context.adapter.threads);
            self.context.inbox.settle(&mut self.arrivals);
            if !goes_on {
                return Some(self.fall_asleep());
            }
            self.context.flush_events();
            match self.look() {
                Ok(false) => {}
                Ok(true) if self.hear_request().is_ok() => {}
                _ => return None,
            }
        }
    }

    /// Passes packets to their queue pairs. Returns false if there were none.
    fn take_packets(&mut self, now: Duration) -> bool {
        if self.arrivals.packets.is_empty() {
            self.context.inbox.take(&mut self.arrivals);
        }
        let count = self.arrivals.packets.len().min(PACKETS);
        for _ in 0..count {
            let Some(packet) = self.arrivals.packets.pop_front() else { break };
            point(Point::PacketTaken);
            match self.qps.get_mut(&packet.qpn) {
                Some(qp) => {
                    qp.receive(&packet, now, &mut self.context);
                    make_ready(qp, &mut self.ready);
                }
                None => self.context.counters.add(Counter::UnknownQp, 1),
            }
            self.arrivals.give_back(packet);
        }
        self.context.has_more = !self.arrivals.packets.is_empty();
        count > 0
    }

    fn hear_doorbells(&mut self) -> bool {
        let (qps, ready, bells, polled) = (&mut self.qps, &mut self.ready, &self.bells, &mut self.polled);
        let is_heard = self.listener.is_there();
        let mut any = polled.look(qps, ready);
        any |= self.doorbells.answer(bells.listened_to(), |bell| {
            if let Some(qp) = bells.qpn(bell).and_then(|qpn| qps.get_mut(&qpn)) {
                make_ready(qp, ready);
                if is_heard {
                    polled.add(qp);
                }
            }
        });
        any
    }

    /// Has queue pairs ring their doorbells again if nobody polls them any more. Returns whether some have work.
    fn end_polls(&mut self) -> bool {
        !self.listener.is_there() && self.polled.end(&mut self.qps, &mut self.ready)
    }

    /// Runs each queue pair that is ready. Returns false if there was none.
    fn work(&mut self, now: Duration) -> bool {
        self.context.now = now;
        while let Some((at, qpn)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.deadline == Some(at)) {
                qp.deadline = None;
                make_ready(qp, &mut self.ready);
            }
        }
        let count = self.ready.len();
        for _ in 0..count {
            let Some(qpn) = self.ready.pop_front() else { break };
            let Some(mut qp) = self.qps.get_mut(&qpn) else { continue };
            qp.is_ready = false;
            if let Some(invalidation) = qp.endpoint.awaited() {
                self.context.peers_are_done = !self.has_peers_at_work(invalidation);
                let Some(same) = self.qps.get_mut(&qpn) else { continue };
                qp = same;
            }
            let deadline = qp.work(now, &mut self.context);
            self.context.peers_are_done = false;
            if let Some(invalidation) = self.context.pending_invalidation.take() {
                self.await_peers(invalidation);
            }
            let Some(at) = deadline else { continue };
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            if at <= now {
                make_ready(qp, &mut self.ready);
            // An earlier timer stays; the queue pair will then report its deadline again.
            } else if qp.deadline.is_none_or(|earlier| at < earlier) {
                if let Some(later) = qp.deadline.replace(at) {
                    self.timers.remove(&(later, qpn));
                }
                self.timers.insert((at, qpn));
            }
        }
        count > 0
    }

    /// Puts a queue pair into the list of ready ones.
    pub(crate) fn wake(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            make_ready(qp, &mut self.ready);
        }
    }

    /// Marks the thread as asleep, and returns how it may sleep: not at all if there is work again.
    fn fall_asleep(&mut self) -> Sleep {
        let events_wait = self.context.flush_events();
        self.sleeps = true;
        self.doorbells.set_asleep(!self.listener.is_there());
        let has_packets = self.context.inbox.set_asleep();
        let rung = self.hear_doorbells() | self.end_polls();
        let now = monotonic();
        let is_idle = !has_packets && !rung;
        self.sleeps_until = if is_idle { self.deadline(now, events_wait) } else { now };
        let until = (self.sleeps_until != Duration::MAX).then_some(self.sleeps_until);
        Sleep { awaits: self.requests(), until, is_idle }
    }

    /// Marks the thread as awake, after it slept.
    fn wake_up(&mut self, sleep: &Sleep) {
        self.sleeps = false;
        self.doorbells.set_asleep(false);
        self.context.inbox.set_awake();
        if sleep.is_idle {
            self.context.inbox.drain();
        }
    }

    /// Returns until when the thread may sleep; `Duration::MAX`: until something wakes it.
    fn deadline(&self, now: Duration, events_wait: bool) -> Duration {
        let timer = self.timers.first().map(|(at, _)| *at);
        let answer = self.awaited.as_ref().map(|awaited| awaited.until);
        let events = events_wait.then_some(now + EVENT_PATIENCE);
        let parting = self.is_unsharing().then_some(now + AGAIN);
        timer.into_iter().chain(events).chain(answer).chain(parting).min().unwrap_or(Duration::MAX)
    }

    /// Returns the events of the connection for which the thread waits. Requests are handled one after the other: a
    /// deferred request leaves later ones in the socket. The end of the connection is reported anyway.
    fn requests(&self) -> PollFlags {
        match self.deferred {
            Some(_) => PollFlags::empty(),
            None if self.connection.has_unsent() => PollFlags::OUT,
            None => PollFlags::IN,
        }
    }

    /// Is true if a request is in the socket.
    fn look(&self) -> Result<bool, SocketError> {
        let mut wanted = [PollFd::from_borrowed_fd(self.connection.as_fd(), self.requests())];
        match poll(&mut wanted, Some(&Timespec::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!wanted[0].revents().is_empty()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn hear_request(&mut self) -> Result<(), SocketError> {
        let Some((request, given)) = self.connection.receive_now::<Request>()? else { return Ok(()) };
        let files: Vec<_> = Given::descriptors(given).collect();
        point(Point::Heard);
        let wished = match request {
            Request::Direct { qpn } => self.request_sharing(Qpn(qpn), SharedPart::Queues),
            Request::Pages { qpn, rkey } => self.request_sharing(Qpn(qpn), SharedPart::Pages(Key(rkey))),
            Request::Memory { qpn } => self.request_sharing(Qpn(qpn), SharedPart::Memory),
            other => {
                self.catch_up();
                return self.begin_request(other, files);
            }
        };
        wished.or_else(|refusal| self.reply(Err(refusal)))
    }

    /// Handles the work that was posted before a request. An application that shrinks or destroys a completion queue
    /// expects the completions of that work in it.
    fn catch_up(&mut self) {
        let mut rounds = 0..ROUNDS;
        if self.hear_doorbells() {
            while rounds.next().is_some() && (self.work(monotonic()) || self.hear_doorbells()) {}
        }
    }

    pub(crate) fn reply(&mut self, reply: Answer) -> Result<(), SocketError> {
        let is_sent = self.send_reply(reply);
        point(Point::Answered);
        is_sent
    }

    fn send_reply(&mut self, reply: Answer) -> Result<(), SocketError> {
        match reply {
            Ok((reply, given)) => {
                let along: Vec<_> = given.iter().map(Given::lend).collect();
                self.connection.send(&Ok::<_, Refusal>(reply), &along)
            }
            Err(refusal) => self.connection.send(&Err::<Reply, _>(refusal), &[]),
        }
    }

    /// Handles a message of another thread. Returns whether this thread must end.
    fn handle_message(&mut self, message: Message) -> bool {
        match message {
            Message::Review => self.review(),
            Message::FewReceives => {
                let srqs: Vec<_> = self.context.srqs.keys().copied().collect();
                srqs.into_iter().for_each(|srq| self.context.tell_of_few(srq));
            }
            Message::PeerGone => self.unshare_gone(),
            Message::NewAddresses => self.context.tell(Event::GidChange, PORT),
            // Nobody waits for the answer any more.
            Message::Share(request) if request.ticket.strong_count() == 0 => {}
            Message::Share(request) => {
                let process = self.process();
                let grant = process.and_then(|process| {
                    let granter = Granter { process: &process, uid: self.who.uid(), token: self.token };
                    let endpoint = &mut self.qps.get_mut(&request.qpn)?.endpoint;
                    grant(endpoint, &request, &granter, &mut self.context)
                });
                request.inbox.send(Message::Shared(SharingAnswer { ticket: request.ticket, grant }));
            }
            Message::Notify(qpn, from) => {
                if let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.endpoint.is_peer(from)) {
                    self.context.tell_channel(qp.endpoint.receive.cq);
                }
            }
            Message::Shared(answer) => {
                if let Some(reply) = self.granted(answer) {
                    return self.reply(reply).is_err();
                }
            }
            Message::NotifyAll => {
                let shares = |qp: &&Qp| qp.endpoint.sharing.inbound.is_some();
                let cqs: Vec<_> = self.qps.values().filter(shares).map(|qp| qp.endpoint.receive.cq).collect();
                cqs.into_iter().for_each(|cq| self.context.tell_channel(cq));
            }
            Message::Describe(ticket, answer) => {
                if ticket.strong_count() > 0 {
                    let _ = answer.send(self.describe());
                }
            }
        }
        false
    }

    pub(crate) fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn describe(&self) -> ClientDescription {
        ClientDescription::of(&self.who, self.qps.values(), &self.context)
    }

    fn leave(mut self) {
        self.say_goodbye();
        self.await_writers();
        for (qpn, qp) in &mut self.qps {
            self.context.adapter.remove_qp(*qpn);
            qp.count_into(&mut self.context.counters);
        }
        // When it loses the device, the application checks its queues for unfinished requests, so they are kept. It may
        // also go on using pages of a window that the device lost.
        if self.context.adapter.is_leaving() {
            self.leave_memory();
        } else {
            let context = &self.context;
            let queues = context
                .cqs
                .values()
                .map(|cq| &cq.backing)
                .chain(context.srqs.values().map(|srq| &srq.backing));
            queues.chain(self.qps.values().map(|qp| &qp.endpoint.backing)).for_each(MemoryBacking::empty);
            context.source.leave_old(&context.adapter.windows());
        }
        self.context.adapter.keep_counters(&self.context.counters);
        tracing::debug!(who = ?self.who, "verbs: an application disconnected");
    }
}

fn make_ready(qp: &mut Qp, ready: &mut VecDeque<Qpn>) {
    if !std::mem::replace(&mut qp.is_ready, true) {
        ready.push_back(qp.endpoint.qpn);
    }
}
