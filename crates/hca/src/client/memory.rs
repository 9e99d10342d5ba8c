//! Registering memory.

use crate::client::Client;
use crate::context::Context;
use crate::mr::{Change, Pages, Registrar, deregister};
use crate::refusal::{Answer, done, reply};
use crate::regions::Regions;
use uverbs::{Region, Reply};

/// The application's regions, and what they are checked against.
fn regions(context: &mut Context) -> (&mut Regions, Registrar<'_>) {
    let Context { adapter, pds, space, fault, regions, .. } = context;
    let limits = adapter.spec().limits;
    (regions, Registrar { pds, space, limits, fault })
}

const fn registered(key: u32) -> Answer {
    reply(Reply::Mr { mr: key, lkey: key, rkey: key })
}

impl Client {
    pub(super) fn register(&mut self, region: Region, pages: Pages) -> Answer {
        let (regions, registrar) = regions(&mut self.context);
        registered(registrar.register(regions, region, pages)?)
    }

    pub(super) fn reregister(&mut self, mr: u32, change: Change) -> Answer {
        let (regions, registrar) = regions(&mut self.context);
        registered(registrar.reregister(regions, mr, change)?)
    }

    pub(super) fn deregister(&mut self, mr: u32) -> Answer {
        deregister(&mut self.context.regions, mr)?;
        done()
    }

    pub(super) fn alloc_window(&mut self, pd: u32, mw_type: u32) -> Answer {
        self.context.pds.check(pd)?;
        let limits = self.context.adapter.spec().limits;
        self.context.regions.alloc_window(pd, mw_type, limits)
    }
}
