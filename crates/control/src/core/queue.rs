//! Changes that clients ask for, while others are made. Changes of routes and rules wait in a queue, from which one
//! thread takes many at once and makes them together. Other changes lock the state one by one.
//!
//! The executor sees only the result of changes that are made together. If one adds a route for which the executor has
//! no room, and a later one removes it, both succeed.
//!
//! A change in the queue has no thread of its own: threads that wait for each other cost more than the changes. The
//! first change that comes starts one of the runtime's threads, which ends when the queue is empty.

use super::changes::{Attempt, Draft};
use super::hand_over::taken_over;
use super::joined::Joined;
use super::open_ports::OnFailure;
use super::transact::Drafted;
use super::{Core, Done, Error, State, Switching, Transaction};
use crate::history::{Author, History};
use crate::object_change::log;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most changes that wait in the queue, and most operations of these. A longer change can wait alone.
const WAITING: (usize, usize) = (1024, 1_000_000);
/// Most changes that are made together, so that the history has all of them after that, and most operations of these.
const TOGETHER: (usize, usize) = (crate::history::MOST.0, 10_000);
/// Most other changes that are under way. Each has a thread of the 512 that clients have in all.
const OTHERS: usize = 256;

pub(super) struct Queue {
    waiting: Mutex<Line>,
    others: Semaphore,
}

impl Default for Queue {
    fn default() -> Self {
        Self { waiting: Mutex::default(), others: Semaphore::new(OTHERS) }
    }
}

#[derive(Default)]
struct Line {
    changes: VecDeque<Waiting>,
    operations: usize,
    /// True while a thread takes changes out.
    is_served: bool,
}

/// A change whose client waits for the answer.
pub(super) struct Waiting {
    by: Author,
    asked: Transaction,
    answer: Sender<Result<Done, Error>>,
}

impl Waiting {
    fn is_same_request(&self, other: &Self) -> bool {
        let asked = self.asked.known_by(self.by);
        asked.is_some() && asked == other.asked.known_by(other.by)
    }

    /// Keeps the answer for those who ask again.
    fn keep(&self, state: &mut State, done: &Result<Done, Error>, history: &History) {
        if let Ok(done) = done {
            state.remember(self.by, &self.asked, done, history);
        }
    }
}

type Answered = (Waiting, Result<Done, Error>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change. Returns its answer, and whether the caller has to serve the queue.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn push(
        &self,
        by: Author,
        asked: Transaction,
    ) -> Result<(Receiver<Result<Done, Error>>, bool), Error> {
        let mut line = self.lock();
        let (waiting, operations) = (line.changes.len(), line.operations + asked.operations.len());
        if waiting >= WAITING.0 || (operations > WAITING.1 && waiting > 0) {
            return Err(Error::Busy(waiting));
        }
        let (answer, answered) = channel();
        line.operations = operations;
        line.changes.push_back(Waiting { by, asked, answer });
        Ok((answered, !std::mem::replace(&mut line.is_served, true)))
    }

    /// Takes out the changes that are made together next.
    fn take(&self) -> Vec<Waiting> {
        let mut line = self.lock();
        let mut room = TOGETHER.1;
        let mut fits = |change: &Waiting| {
            let left = room.checked_sub(change.asked.operations.len());
            room = left.unwrap_or_default();
            left.is_some()
        };
        let together = line.changes.iter().take(TOGETHER.0).take_while(|change| fits(change)).count();
        let together = together.max(1).min(line.changes.len());
        let taken: Vec<_> = line.changes.drain(..together).collect();
        line.operations -= taken.iter().map(|change| change.asked.operations.len()).sum::<usize>();
        taken
    }

    /// Tells whether there are more. If not, the next that comes serves the queue.
    fn has_more(&self) -> bool {
        let mut line = self.lock();
        line.is_served = !line.changes.is_empty();
        line.is_served
    }
}

impl Core {
    /// Has a change made that can be joined with others, and returns where its answer comes.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(crate) fn ask(
        core: &Arc<Self>,
        by: Author,
        asked: Transaction,
    ) -> Result<Receiver<Result<Done, Error>>, Error> {
        let (answered, is_first) = core.queue.push(by, asked)?;
        if is_first {
            let core = core.clone();
            tokio::task::spawn_blocking(move || while core.serve_next() {});
        }
        Ok(answered)
    }

    /// Lets a change begin that does not wait in the queue.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub(crate) fn admit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.queue.others.try_acquire().map_err(|_| Error::Busy(OTHERS))
    }

    /// Makes the changes that wait, and tells whether there are more.
    pub(super) fn serve_next(&self) -> bool {
        let answered = match self.lock_to_change() {
            // Those that came while others had the lock are made as well.
            Ok(mut state) => self.make_all(&mut state, self.queue.take().into()),
            Err(_) => self.queue.take().into_iter().map(|waiting| (waiting, Err(taken_over()))).collect(),
        };
        for (Waiting { by, answer, .. }, done) in answered {
            if let Ok(done) = &done {
                log(by, &done.changes);
            }
            // A client that has hung up wants no answer.
            let _ = answer.send(done);
        }
        self.queue.has_more()
    }

    /// Makes changes as if one were made after the other, together where that is possible.
    fn make_all(&self, state: &mut State, mut waiting: VecDeque<Waiting>) -> Vec<Answered> {
        let mut answered = Vec::with_capacity(waiting.len());
        let (mut joined, mut tried) = (Joined::on(state), Vec::new());
        while let Some(next) = waiting.pop_front() {
            // The same request again has the answer of the first one.
            let is_repeated = tried.iter().any(|(before, _): &Answered| before.is_same_request(&next));
            let done = if is_repeated { Ok(None) } else { self.join(state, &mut joined, &next) };
            match done.transpose() {
                Some(done) => tried.push((next, done)),
                None => {
                    answered.extend(self.conclude(state, joined, tried));
                    if is_repeated {
                        waiting.push_front(next);
                    } else {
                        let done = self.make_alone(state, &next).map_err(|e| next.asked.blamed(e));
                        next.keep(state, &done, &self.history());
                        answered.push((next, done));
                    }
                    (joined, tried) = (Joined::on(state), Vec::new());
                }
            }
        }
        answered.extend(self.conclude(state, joined, tried));
        answered
    }

    /// Adds a change to those that are made together; `None` if it must be made alone.
    fn join(
        &self,
        state: &State,
        joined: &mut Joined,
        Waiting { by, asked, .. }: &Waiting,
    ) -> Result<Option<Done>, Error> {
        match asked.drafted(*by, state, &joined.objects, joined.number)? {
            Drafted::Known(done) => Ok(Some(done)),
            Drafted::New(next) => joined.add(state, &next, *by).map_err(|e| asked.blamed(e)),
        }
    }

    /// Puts in force what was joined. If that is refused, each change is tried alone.
    fn conclude(&self, state: &mut State, joined: Joined, tried: Vec<Answered>) -> Vec<Answered> {
        let made = self.make_together(state, joined);
        match made {
            Err(_) if tried.len() > 1 => {
                let alone =
                    tried.into_iter().map(|(waiting, _)| self.make_all(state, VecDeque::from([waiting])));
                alone.flatten().collect()
            }
            Err(e) => tried.into_iter().map(|(waiting, _)| waiting).zip([Err(e)]).collect(),
            Ok(()) => {
                let history = self.history();
                tried.iter().for_each(|(waiting, done)| waiting.keep(state, done, &history));
                tried
            }
        }
    }

    /// Makes a change of routes and rules on which other objects depend. It opens no port.
    fn make_alone(&self, state: &mut State, Waiting { by, asked, .. }: &Waiting) -> Result<Done, Error> {
        let next = match asked.drafted(*by, state, &state.objects, state.revision)? {
            Drafted::Known(done) => return Ok(done),
            Drafted::New(next) => next,
        };
        let draft = Draft::of(state, next)?;
        let how = Switching { on_failure: OnFailure::Leave, ..Switching::by(*by) };
        match self.attempt(state, &draft, how, None)? {
            Attempt::Done(done) => Ok(done),
            Attempt::Later(_) => Ok(Done::default()),
        }
    }
}
