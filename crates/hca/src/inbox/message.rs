//! Messages between threads: applications' threads, and the thread of a device.

use crate::base::ids::{Key, Qpn};
use crate::inbox::{Enqueue, Inbox};
use crate::program::description::ClientDescription;
use crate::program::grants::Process;
use crate::window::source::{MemoryBacking, Reach};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak, mpsc};
use uverbs::{DirectPeer, Given};

/// How many messages [`Message::Notify`] may wait. If there are more, one [`Message::NotifyAll`] replaces them.
const NOTIFICATIONS: usize = 1024;

/// Tells whether somebody waits for the answer: the asking thread keeps the strong reference.
pub(crate) type Ticket = Weak<()>;

/// The GID and number of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpAddress {
    pub gid: Ipv6Addr,
    pub qpn: Qpn,
}

/// The memory that an application wants a peer to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedPart {
    /// The queues of a queue pair.
    Queues,
    /// The file of the region with this key.
    Pages(Key),
    /// All memory of the peer's process.
    Memory,
}

/// A request to share memory with a queue pair and its application.
#[derive(Debug)]
pub(crate) struct SharingRequest {
    /// The queue pair.
    pub qpn: Qpn,
    pub wanted: SharedPart,
    /// The requesting queue pair.
    pub from: QpAddress,
    /// The user of the application; `None`: it is in a virtual machine, whose users the host does not know.
    pub uid: Option<u32>,
    /// The memory that it can map.
    pub reach: Reach,
    pub trust: String,
    pub process: Arc<Process>,
    /// The thread that gets the answer.
    pub inbox: Arc<Inbox<Message>>,
    pub ticket: Ticket,
}

/// The memory that an application is given.
#[derive(Debug)]
pub(crate) enum Grant {
    Queues(Box<QueuesGrant>),
    /// A region's pages, with their identifier.
    Pages {
        address: u64,
        len: u64,
        id: u64,
        memory: Vec<Given>,
    },
    /// A process with its token, and its `/proc/self/mem`.
    Memory {
        pid: i32,
        token: u64,
        file: OwnedFd,
    },
}

/// A shared queue pair, and the memory to send with it.
#[derive(Debug)]
pub(crate) struct QueuesGrant {
    pub peer: DirectPeer,
    /// In the order that [`DirectPeer`] defines. Memory of the asking application's own queues comes between `first`
    /// and `last`.
    pub session: MemoryBacking,
    pub first: Vec<Given>,
    pub last: Vec<Given>,
}

/// An answer to a [`SharingRequest`].
#[derive(Debug)]
pub(crate) struct SharingAnswer {
    pub ticket: Ticket,
    pub grant: Option<Grant>,
}

/// A message to an application's thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// Describe the application's objects.
    Describe(Ticket, mpsc::Sender<ClientDescription>),
    /// Find all paths again: rules or addresses have changed.
    Review,
    /// Find out who still uses the memory shared here: an application that used it is gone, perhaps in the middle of a
    /// message.
    PeerGone,
    /// Tell the application that addresses have changed.
    NewAddresses,
    /// Tell the application which of its shared receive queues are low.
    FewReceives,
    /// Share memory with a peer.
    Share(Box<SharingRequest>),
    /// The answer to this thread's own message `Share`.
    Shared(SharingAnswer),
    /// Notify the completion channel of this queue pair: its peer, with this GID and number, has stored a message in
    /// it.
    Notify(Qpn, QpAddress),
    /// Notify the completion channels of all queue pairs in which peers store messages themselves.
    NotifyAll,
}

impl Message {
    /// Is true if the message can be dropped, because `newer` replaces it or nobody waits for the answer.
    fn is_made_needless_by(&self, newer: &Self) -> bool {
        let is_replaced = match (self, newer) {
            (Self::Share(request), Self::Share(newer)) => Arc::ptr_eq(&request.inbox, &newer.inbox),
            (Self::Review, Self::Review)
            | (Self::PeerGone, Self::PeerGone)
            | (Self::NewAddresses, Self::NewAddresses)
            | (Self::FewReceives, Self::FewReceives)
            | (Self::Notify(..), Self::NotifyAll)
            | (Self::NotifyAll, Self::NotifyAll) => true,
            (Self::Notify(qpn, from), Self::Notify(to, by)) => (qpn, from) == (to, by),
            _ => false,
        };
        is_replaced || self.is_stale()
    }

    /// Is true if nobody waits for the answer any more.
    fn is_stale(&self) -> bool {
        match self {
            Self::Describe(ticket, _) => ticket.strong_count() == 0,
            Self::Share(request) => request.ticket.strong_count() == 0,
            Self::Shared(answer) => answer.ticket.strong_count() == 0,
            _ => false,
        }
    }
}

impl Enqueue for Message {
    fn add_to(self, waiting: &mut Vec<Self>) -> Vec<Self> {
        if self.is_stale() || matches!(self, Self::Notify(..)) && notifies_all(waiting) {
            return vec![self];
        }
        let notifications = waiting.iter().filter(|other| matches!(other, Self::Notify(..))).count();
        let is_one_too_many = matches!(self, Self::Notify(..)) && notifications >= NOTIFICATIONS;
        let message = if is_one_too_many { Self::NotifyAll } else { self };
        let needless = waiting.extract_if(.., |other| other.is_made_needless_by(&message)).collect();
        waiting.push(message);
        needless
    }
}

fn notifies_all(waiting: &[Message]) -> bool {
    waiting.iter().any(|other| matches!(other, Message::NotifyAll))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::{DeviceBudget, HostBudget};
    use crate::program::grants::MemoryGrants;

    const FROM: QpAddress = QpAddress { gid: Ipv6Addr::LOCALHOST, qpn: Qpn(1) };

    /// Returns the queue of a stopped thread after these messages.
    fn waiting(messages: impl Iterator<Item = Message>) -> Vec<Message> {
        let mut waiting = Vec::new();
        messages.for_each(|message| drop(message.add_to(&mut waiting)));
        waiting
    }

    #[test]
    fn who_asks_again_waits_once() {
        let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(100, 100)), 0));
        let process = MemoryGrants::default().process(1, None, "vm1", &budget).unwrap();
        let inboxes = [(); 2].map(|()| Arc::new(Inbox::new(budget.clone()).unwrap()));
        let tickets: Vec<_> = (0..1000).map(|_| Arc::new(())).collect();
        let request = |(at, ticket): (usize, &Arc<()>)| {
            let request = SharingRequest {
                qpn: Qpn(at as u32),
                wanted: SharedPart::Pages(Key(at as u32)),
                from: QpAddress { gid: Ipv6Addr::LOCALHOST, qpn: Qpn(at as u32) },
                uid: Some(0),
                reach: Reach { is_local: true, windows: Default::default() },
                trust: "all".into(),
                process: process.clone(),
                inbox: inboxes[at % 2].clone(),
                ticket: Arc::downgrade(ticket),
            };
            Message::Share(Box::new(request))
        };
        let left = waiting(tickets.iter().enumerate().map(request));
        let qpn = |message: &Message| match message {
            Message::Share(request) => request.qpn,
            other => panic!("{other:?}"),
        };
        let from: Vec<_> = left.iter().map(qpn).collect();
        assert_eq!(from, [998, 999].map(Qpn));
        // Messages whose answer nobody awaits are dropped.
        let (answer, _answers) = mpsc::channel();
        let asked = tickets.iter().map(|ticket| Message::Describe(Arc::downgrade(ticket), answer.clone()));
        let mut left = waiting(asked);
        assert_eq!(left.len(), 1000);
        drop(tickets);
        drop(Message::Review.add_to(&mut left));
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn what_needs_no_answer_waits_once() {
        let times = |message: fn(u32) -> Message| waiting((0..5000).map(message)).len();
        assert_eq!(times(|_| Message::Review), 1);
        assert_eq!(times(|_| Message::PeerGone), 1);
        assert_eq!(times(|_| Message::NewAddresses), 1);
        assert_eq!(times(|_| Message::FewReceives), 1);
        assert_eq!(times(|qpn| Message::Notify(Qpn(qpn % 7), FROM)), 7);
        // Too many to be notified one by one.
        let told = waiting((0..5000).map(|qpn| Message::Notify(Qpn(qpn), FROM)));
        assert!(matches!(told[..], [Message::NotifyAll]), "{}", told.len());
    }
}
