//! Pages of windows that a program got for its regions. They are the program's and not one connection's: a program that
//! opens its device twice, or two devices with a window in common, may have regions of both in one page.

use crate::base::random;
use crate::window::{NoPages, PIECES, Pages, Window};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{Part, Uuid};

/// A place in a window: the address of the daemon's object, and an offset.
type Place = (usize, u64);

fn place(window: &Arc<Window>, offset: u64) -> Place {
    (Arc::as_ptr(window).addr(), offset)
}

/// The pages of one program.
#[derive(Debug)]
pub(crate) struct ProgramPages {
    number: u64,
    pages: Mutex<BTreeMap<Place, Arc<Pages>>>,
}

/// The programs with connections to devices of this host.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<HashMap<Uuid, Weak<ProgramPages>>>);

impl Programs {
    /// Returns the pages of the program with this secret. A program without a secret shares with nobody.
    pub fn pages_of(&self, secret: Uuid) -> Arc<ProgramPages> {
        if secret == Uuid::default() {
            return Arc::new(ProgramPages::new());
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&secret).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, pages| pages.strong_count() > 0);
        let new = Arc::new(ProgramPages::new());
        all.insert(secret, Arc::downgrade(&new));
        new
    }
}

impl ProgramPages {
    pub fn new() -> Self {
        let number = u64::from(random::number()) << 32 | u64::from(random::number());
        Self { number, pages: Mutex::default() }
    }

    /// Returns the number by which its connections know that they have the same pages
    /// ([`uverbs::DeviceInfo::program`]).
    pub const fn number(&self) -> u64 {
        self.number
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<Place, Arc<Pages>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds pages.
    ///
    /// # Errors
    /// If it has too many pieces, however many connections it has.
    pub fn add(&self, taken: &[Arc<Pages>]) -> Result<(), NoPages> {
        let mut pages = self.pages();
        if pages.len() + taken.len() > PIECES as usize {
            return Err(NoPages::Pieces);
        }
        pages.extend(taken.iter().map(|it| (place(it.window(), it.part().offset), it.clone())));
        Ok(())
    }

    /// Finds the pages that contain a part of a window, if all of it is in one piece whose memory is there.
    pub fn find(&self, window: &Arc<Window>, part: Part) -> Option<Arc<Pages>> {
        let last = place(window, part.offset);
        let pages =
            self.pages().range(place(window, 0)..=last).next_back().map(|(_, pages)| pages.clone())?;
        (pages.view(part.offset, part.len).is_some() && !pages.are_faulty()).then_some(pages)
    }

    /// Removes a piece. Regions that have it keep it. False if there is no such piece.
    pub fn remove(&self, window: &Arc<Window>, part: Part) -> bool {
        let place = place(window, part.offset);
        let removed = {
            let mut pages = self.pages();
            let is_it = pages.get(&place).is_some_and(|pages| pages.part() == part);
            if is_it { pages.remove(&place) } else { None }
        };
        // Giving them back to the host takes its time, so it is done without the lock.
        removed.inspect(|pages| pages.give_back()).is_some()
    }

    /// Orphans the pages after a device of the program went away, except those that the program gives back itself.
    pub fn leave(&self) {
        self.pages().values().for_each(|pages| pages.abandon());
    }
}
