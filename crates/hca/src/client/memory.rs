//! Registering memory.

use crate::base::ids::{Key, PdId};
use crate::base::refusal::{Answer, done, no_memory, refuse, reply};
use crate::client::Client;
use crate::context::Context;
use crate::context::mr::{Change, Registrar, Wanted, deregister};
use crate::memory::regions::Regions;
use rustix::io::Errno;
use uverbs::{Part, Region, Reply};

/// Borrows the application's regions, and all that is needed to check them.
fn regions(context: &mut Context) -> (&mut Regions, Registrar<'_>) {
    let Context { adapter, pds, space, source, regions, .. } = context;
    let limits = adapter.spec().limits;
    (regions, Registrar { pds, space, limits, source })
}

const fn registered(key: Key) -> Answer {
    reply(Reply::Mr { mr: key.0, lkey: key.0, rkey: key.0 })
}

impl Client {
    pub(super) fn register(&mut self, region: Region, pages: Wanted) -> Answer {
        let (regions, registrar) = regions(&mut self.context);
        registered(registrar.register(regions, region, pages)?)
    }

    pub(super) fn reregister(&mut self, mr: Key, change: Change) -> Answer {
        let (regions, registrar) = regions(&mut self.context);
        registered(registrar.reregister(regions, mr, change)?)
    }

    pub(super) fn deregister(&mut self, mr: Key) -> Answer {
        deregister(&mut self.context.regions, mr)?;
        done()
    }

    /// Gives the application pages of a window.
    pub(super) fn alloc_pages(&mut self, len: u64) -> Answer {
        let context = &self.context;
        let Some(taken) = context.source.pages(len) else {
            return refuse(Errno::OPNOTSUPP, "the device has no window");
        };
        let (taken, reach) = (taken?, &context.source.reach);
        let given: Option<Vec<_>> = taken.iter().map(|pages| reach.pages(pages, pages.part())).collect();
        let given = given.ok_or_else(|| no_memory("the daemon has no descriptor left"))?;
        context.source.keep(&taken)?;
        Ok((Reply::Done, given))
    }

    /// Takes pages of a window back.
    pub(super) fn free_pages(&mut self, part: Part) -> Answer {
        if self.context.source.give_back(part) {
            done()
        } else {
            refuse(Errno::INVAL, "not pages that the program has")
        }
    }

    pub(super) fn alloc_window(&mut self, pd: PdId, mw_type: u32) -> Answer {
        self.context.pds.check(pd)?;
        let limits = self.context.adapter.spec().limits;
        self.context.regions.alloc_window(pd, mw_type, limits)
    }
}
