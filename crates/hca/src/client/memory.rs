//! Registering memory.

use crate::client::Client;
use crate::context::Context;
use crate::ids::{Key, PdId};
use crate::mr::{Change, Pages, Registrar, deregister};
use crate::refusal::{Answer, done, reply};
use crate::regions::Regions;
use uverbs::{Region, Reply};

/// The application's regions, and what is needed to check them.
fn regions(context: &mut Context) -> (&mut Regions, Registrar<'_>) {
    let Context { adapter, pds, space, fault, regions, .. } = context;
    let limits = adapter.spec().limits;
    (regions, Registrar { pds, space, limits, fault })
}

const fn registered(key: Key) -> Answer {
    reply(Reply::Mr { mr: key.0, lkey: key.0, rkey: key.0 })
}

impl Client {
    pub(super) fn register(&mut self, region: Region, pages: Pages) -> Answer {
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

    pub(super) fn alloc_window(&mut self, pd: PdId, mw_type: u32) -> Answer {
        self.context.pds.check(pd)?;
        let limits = self.context.adapter.spec().limits;
        self.context.regions.alloc_window(pd, mw_type, limits)
    }
}
