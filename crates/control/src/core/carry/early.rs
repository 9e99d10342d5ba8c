//! Connections of a daemon that still forwards, entered before it stops. While packets wait, only what has
//! changed since then is left to do.

use super::{Snapshot, translated};
use crate::compile::Desired;
use crate::core::directory::{Directory, Translation};
use carryover::Former;
use executor::{BadRecord, Executor, RECORD};
use std::iter::Peekable;
use std::vec::IntoIter;

/// The key of a connection that was entered, and the number of its record.
type Numbered = (usize, executor::Entered);

/// The connections that were entered early.
#[derive(Debug, Default)]
pub(in crate::core) struct Early {
    /// The names with which their records were understood.
    directory: Directory,
    entered: Vec<Numbered>,
}

impl Early {
    /// Enters what the running daemon remembers. Records that can't be read now are read once it has stopped.
    pub(in crate::core) fn enter(former: &Former, tables: &Desired, executor: &dyn Executor) -> Self {
        Self::by(former, &Directory::of(tables), executor)
    }

    /// Does the same with the names `now`.
    pub(super) fn by(former: &Former, now: &Directory, executor: &dyn Executor) -> Self {
        let Ok(Snapshot { directory, .. }) = Snapshot::of(former) else { return Self::default() };
        let way = Translation::new(&directory, now);
        let mut entered = Vec::new();
        let read = former.records_so_far(&mut |number, record| {
            let flow = executor.remembered(record).ok().flatten().and_then(|flow| translated(&flow, &way));
            let known = flow.and_then(|flow| executor.enter_early(&flow, record));
            entered.extend(known.map(|known| (number, known)));
        });
        if let Err(error) = read {
            tracing::debug!(%error, "connections of the running daemon can't all be read early");
        }
        tracing::debug!(connections = entered.len(), "entered while the other daemon goes on");
        Self { directory, entered }
    }

    /// Returns the connections to be brought up to date if their records still have the same names; otherwise
    /// forgets them.
    pub(super) fn known_by(self, directory: &Directory, executor: &dyn Executor) -> Entered {
        let is_same = self.directory == *directory;
        let entered = Entered(self.entered.into_iter().peekable());
        if is_same {
            return entered;
        }
        entered.end(executor);
        Entered(Vec::new().into_iter().peekable())
    }
}

/// Connections that are not up to date yet, in the order of their records.
pub(super) struct Entered(Peekable<IntoIter<Numbered>>);

impl Entered {
    /// Brings the connection of this record up to date; false if no such connection was entered. Records come
    /// in order.
    ///
    /// # Errors
    /// [`BadRecord`], as for [`Executor::catch_up`].
    pub(super) fn catch_up(
        &mut self,
        number: usize,
        record: &[u64; RECORD],
        executor: &dyn Executor,
    ) -> Result<bool, BadRecord> {
        while let Some((_, gone)) = self.0.next_if(|(at, _)| *at < number) {
            forget(gone, executor);
        }
        match self.0.next_if(|(at, _)| *at == number) {
            Some((_, entered)) => executor.catch_up(entered, record),
            None => Ok(false),
        }
    }

    /// Is true if all connections are up to date or forgotten.
    pub(super) fn is_done(&mut self) -> bool {
        self.0.peek().is_none()
    }

    /// Forgets connections whose records did not come.
    pub(super) fn end(self, executor: &dyn Executor) {
        self.0.for_each(|(_, gone)| forget(gone, executor));
    }
}

fn forget(gone: executor::Entered, executor: &dyn Executor) {
    // A record that is all zero holds no connection, so the executor forgets this one.
    let _ = executor.catch_up(gone, &[0; RECORD]);
}
