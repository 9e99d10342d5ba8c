//! Checks that the host has room for its interfaces.

use super::problem;
use crate::{GuestKind, Item, Mode, Object, Problem};

/// Most interfaces of a host. The executor finds their counters and queues by their numbers.
pub(super) const MOST: usize = 4096;

/// Checks the number of interfaces: those of wires, guests and ways out, and those that guests have beside their own for verbs,
/// VLANs and an Open vSwitch.
pub(super) fn check(objects: &[Item], problems: &mut Vec<Problem>) {
    let mut count = 0;
    for item in objects {
        let own = match &item.object {
            Object::Wire(wire) => 1 + usize::from(wire.mode == Mode::Ovs),
            Object::Guest(guest) => {
                let verbs = guest.verbs.is_some() && guest.kind() != GuestKind::Rdma;
                1 + usize::from(verbs) + usize::from(guest.mode == Mode::Ovs) + guest.vlans.len()
            }
            Object::Network(network) => usize::from(network.leaves_by_host()),
            _ => continue,
        };
        count += own;
        if count > MOST && count - own <= MOST {
            let message =
                format!("a host has at most {MOST} interfaces, and this is one too many; take some out");
            problem(problems, item, "name", message);
        }
    }
}
