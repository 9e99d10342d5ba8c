//! Fragments of tunnel packets.

use super::case::Case;
use super::{Core, Ingress};
use crate::pinned::Tables;
use crate::reassembly::Lost;
use mem::Offload;

impl Core {
    /// Returns whether packets wait here, for neighbours or for other fragments.
    pub fn holds(&self) -> bool {
        !self.hold.is_empty() || !self.reassemblies.is_empty()
    }

    /// Keeps a fragment until the others have come; then decides the whole packet.
    #[cold]
    pub(super) fn reassemble(&mut self, tables: Tables<'_>, fragment: &[u8], case: &Case) {
        self.give_up_fragments();
        let added = self.reassemblies.add(fragment, &case.headers, case.ingress, self.now.ns);
        added.lost.iter().for_each(|lost| self.lose_fragments(lost));
        if let Some(mut whole) = added.whole {
            self.whole(tables, &mut whole, Ingress::new(case.ingress), Offload::default());
        }
    }

    /// Drops fragments that waited long enough.
    pub fn give_up_fragments(&mut self) {
        while let Some(lost) = self.reassemblies.pop_late(self.now.ns) {
            self.lose_fragments(&lost);
        }
    }

    fn lose_fragments(&mut self, lost: &Lost) {
        for _ in 0..lost.fragments {
            self.drop_whole(&lost.head, lost.ingress, lost.reason);
        }
    }
}
