//! The queue of questions to an application's thread. The thread may stop for ever, at a page of the application's
//! memory that never comes. So that this queue stays short, a new question replaces an older one that it makes
//! unnecessary.

use crate::describe::ClientDescription;
use crate::direct::{Granted, Wish};
use std::net::Ipv6Addr;
use std::sync::{Arc, Weak, mpsc};

/// Questions [`Question::Tell`] that may wait at a time. If there are more, one [`Question::TellAll`] replaces them.
const TOLD: usize = 1024;

/// Held strongly by the one who asks, for as long as he waits for the answer.
pub(crate) type Ticket = Weak<()>;

/// A question to an application's thread.
#[derive(Debug)]
pub(crate) enum Question {
    /// Describe the application's objects.
    Describe(Ticket, mpsc::Sender<ClientDescription>),
    /// Look up all paths again: rules or addresses have changed.
    Review,
    /// Find out who still uses the memory that is shared here: an application that used it is gone, perhaps in the
    /// middle of something.
    PeerGone,
    /// Tell the application that addresses have changed.
    NewAddresses,
    /// Tell the application which of its shared receive queues are low.
    FewReceives,
    /// Share memory with a peer.
    Direct(Box<Wish>),
    /// Take the answer to a question `Direct` that this thread asked.
    Granted(Granted),
    /// Notify the completion channel of this queue pair: its peer, with this GID and number, has put a message into it.
    Tell(u32, (Ipv6Addr, u32)),
    /// Notify the completion channels of all queue pairs into which peers put messages themselves.
    TellAll,
}

impl Question {
    /// Whether it can be left out, since `newer` is asked or since nobody waits for the answer.
    fn is_made_needless_by(&self, newer: &Self) -> bool {
        let is_replaced = match (self, newer) {
            (Self::Direct(wish), Self::Direct(newer)) => Arc::ptr_eq(&wish.inbox, &newer.inbox),
            (Self::Review, Self::Review)
            | (Self::PeerGone, Self::PeerGone)
            | (Self::NewAddresses, Self::NewAddresses)
            | (Self::FewReceives, Self::FewReceives)
            | (Self::Tell(..), Self::TellAll)
            | (Self::TellAll, Self::TellAll) => true,
            (Self::Tell(qpn, from), Self::Tell(to, by)) => (qpn, from) == (to, by),
            _ => false,
        };
        is_replaced || self.is_stale()
    }

    /// Whether nobody waits for the answer any more.
    fn is_stale(&self) -> bool {
        match self {
            Self::Describe(ticket, _) => ticket.strong_count() == 0,
            Self::Direct(wish) => wish.ticket.strong_count() == 0,
            Self::Granted(granted) => granted.ticket.strong_count() == 0,
            _ => false,
        }
    }
}

/// Adds a question to the queue. Returns the questions that this makes unnecessary. The caller drops them after it has
/// released its locks: they may hold descriptors, and closing those can take long.
#[must_use]
pub(crate) fn add(waiting: &mut Vec<Question>, question: Question) -> Vec<Question> {
    if question.is_stale() || matches!(question, Question::Tell(..)) && tells_all(waiting) {
        return vec![question];
    }
    let tells = waiting.iter().filter(|other| matches!(other, Question::Tell(..))).count();
    let question =
        if matches!(question, Question::Tell(..)) && tells >= TOLD { Question::TellAll } else { question };
    let needless = waiting.extract_if(.., |other| other.is_made_needless_by(&question)).collect();
    waiting.push(question);
    needless
}

fn tells_all(waiting: &[Question]) -> bool {
    waiting.iter().any(|other| matches!(other, Question::TellAll))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::budget::{Account, Stock};
    use crate::direct::Wanted;
    use crate::holders::Holders;
    use crate::inbox::Inbox;

    /// The queue of a thread that is stopped, after these questions.
    fn waiting(questions: impl Iterator<Item = Question>) -> Vec<Question> {
        let mut waiting = Vec::new();
        questions.for_each(|question| drop(add(&mut waiting, question)));
        waiting
    }

    #[test]
    fn who_asks_again_waits_once() {
        let account = Arc::new(Account::new(Arc::new(Stock::new(100, 100)), 0));
        let process = Holders::default().process(1, "vm1", &account).unwrap();
        let inboxes = [(); 2].map(|()| Arc::new(Inbox::new(account.clone()).unwrap()));
        let tickets: Vec<_> = (0..1000).map(|_| Arc::new(())).collect();
        let wish = |(at, ticket): (usize, &Arc<()>)| {
            let wish = Wish {
                qpn: at as u32,
                wanted: Wanted::Pages(at as u32),
                from: (Ipv6Addr::LOCALHOST, at as u32),
                uid: 0,
                trust: "all".into(),
                process: process.clone(),
                inbox: inboxes[at % 2].clone(),
                ticket: Arc::downgrade(ticket),
            };
            Question::Direct(Box::new(wish))
        };
        let left = waiting(tickets.iter().enumerate().map(wish));
        let qpn = |question: &Question| match question {
            Question::Direct(wish) => wish.qpn,
            other => panic!("{other:?}"),
        };
        let from: Vec<_> = left.iter().map(qpn).collect();
        assert_eq!(from, [998, 999]);
        // Questions whose answer nobody waits for are left out.
        let (answer, _answers) = mpsc::channel();
        let asked = tickets.iter().map(|ticket| Question::Describe(Arc::downgrade(ticket), answer.clone()));
        let mut left = waiting(asked);
        assert_eq!(left.len(), 1000);
        drop(tickets);
        drop(add(&mut left, Question::Review));
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn what_needs_no_answer_waits_once() {
        let times = |question: fn(u32) -> Question| waiting((0..5000).map(question)).len();
        assert_eq!(times(|_| Question::Review), 1);
        assert_eq!(times(|_| Question::PeerGone), 1);
        assert_eq!(times(|_| Question::NewAddresses), 1);
        assert_eq!(times(|_| Question::FewReceives), 1);
        assert_eq!(times(|qpn| Question::Tell(qpn % 7, (Ipv6Addr::LOCALHOST, 1))), 7);
        // Too many to be notified one by one.
        let told = waiting((0..5000).map(|qpn| Question::Tell(qpn, (Ipv6Addr::LOCALHOST, 1))));
        assert!(matches!(told[..], [Question::TellAll]), "{}", told.len());
    }
}
