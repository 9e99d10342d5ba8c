//! Protection domains.

use crate::base::budget::{Kind, Reservation};
use crate::base::ids::PdId;
use crate::base::limits::MAX_PDS;
use crate::base::refusal::found;
use crate::context::quota::Quota;
use std::collections::HashMap;
use uverbs::Refusal;

/// The protection domains of an application. A domain is only a number that its objects have in common.
#[derive(Debug, Default)]
pub(crate) struct Pds(HashMap<PdId, Reservation>);

impl Pds {
    pub fn alloc(&mut self, pd: PdId, quota: &Quota) -> Result<(), Refusal> {
        let held = quota.take(Kind::ProtectionDomain, 0, MAX_PDS)?;
        self.0.insert(pd, held);
        Ok(())
    }

    /// Refuses a domain that does not exist.
    pub fn check(&self, pd: PdId) -> Result<(), Refusal> {
        found(self.0.contains_key(&pd).then_some(()), "protection domain")
    }

    pub fn remove(&mut self, pd: PdId) {
        self.0.remove(&pd);
    }
}
