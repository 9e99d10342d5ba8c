//! Choice among equal-cost nexthops.

use super::Walk;
use crate::{DropReason, Lookup, Nexthop, NexthopId};

/// Groups within groups that are followed at most.
const MAX_DEPTH: usize = 4;

impl<'a, T: Lookup> Walk<'a, T> {
    /// The nexthop with this id, or the member of its group that the flow uses.
    ///
    /// Rendezvous hashing: the member with the highest [`Nexthop::weight`] wins, so that a flow moves only if its own
    /// member goes or a new one takes it over, and every host that has the same members chooses alike.
    pub(super) fn pick(&self, id: NexthopId, entropy: u32) -> Result<(NexthopId, &'a Nexthop), DropReason> {
        let mut id = id;
        for _ in 0..MAX_DEPTH {
            let nexthop = self.tables.nexthop(id).ok_or(DropReason::NexthopInvalid)?;
            let Nexthop::Ecmp(members) = nexthop else { return Ok((id, nexthop)) };
            let known = members.iter().filter_map(|id| Some((*id, self.tables.nexthop(*id)?)));
            id = known
                .max_by_key(|(_, member)| (member.weight(entropy), member.fingerprint()))
                .map(|(id, _)| id)
                .ok_or(DropReason::NexthopInvalid)?;
        }
        Err(DropReason::NexthopInvalid)
    }
}
