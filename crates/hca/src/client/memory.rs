//! Registering memory.

use crate::base::ids::{Key, PdId};
use crate::base::refusal::{Answer, done, no_memory, refuse, reply};
use crate::client::Client;
use crate::context::Context;
use crate::context::copier::Copier;
use crate::context::mr::{Change, Registrar, Wanted, deregister};
use crate::memory::regions::Regions;
use rustix::io::Errno;
use uverbs::{CopyReport, Extent, Part, Region, Reply};

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

    /// Begins to use the program's copier. From now on only the program's own thread works for it.
    pub(super) fn serve_copies(&mut self) -> Answer {
        let context = &mut self.context;
        if !context.space.is_none() {
            return refuse(Errno::OPNOTSUPP, "the device reaches the memory of this program without copies");
        }
        if context.copier.is_some() {
            return refuse(Errno::BUSY, "the program has a copier already");
        }
        let (memory, backing) = context.source.memory("copies", CopyReport::BYTES)?;
        let theirs = backing.give_owner(&context.source.reach)?;
        let (jobs, socket) = self.notifiers.create().map_err(no_memory)?;
        context.copier = Some(Copier::new(jobs, CopyReport::new(memory), backing));
        self.listener.work_alone();
        Ok((Reply::Done, vec![theirs, socket]))
    }

    /// Registers a region with pages that stand for its own, between which the program's copier copies.
    pub(super) fn register_stand_in(&mut self, region: Region, extents: Vec<Extent>) -> Answer {
        if self.context.copier.is_none() {
            return refuse(Errno::INVAL, "the program has no copier for memory that can't move");
        }
        self.register(region, Wanted { extents, file: None, stands_in: true })
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
