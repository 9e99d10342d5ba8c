//! Checks that guests with a common window agree.

use super::{Index, problem};
use crate::{Guest, Item, Object, Problem, VhostUser};
use std::collections::HashMap;

/// Checks that the guests of each trust with a window are in one network, and that their windows have one
/// owner: all of them reach each other's memory there.
pub(super) fn check(index: &Index, objects: &[Item], problems: &mut Vec<Problem>) {
    let mut networks: HashMap<&str, &Guest> = HashMap::new();
    let mut owners: HashMap<&str, (&Guest, &VhostUser)> = HashMap::new();
    for item in objects {
        let Object::Guest(guest) = &item.object else { continue };
        let Some(trust) =
            guest.rdma_trust.as_deref().filter(|trust| index.common_windows().get(trust).is_some())
        else {
            continue;
        };
        let first = *networks.entry(trust).or_insert(guest);
        if first.network != guest.network {
            let message = format!(
                "the guests of trust \"{trust}\" have a window in common, and guest \"{}\" is in network \"{}\"; give those \
                 of each network a trust of their own",
                first.name, first.network
            );
            problem(problems, item, "rdma_trust", message);
        }
        let Some(vhost) = guest.vhost().filter(|vhost| vhost.window.is_some()) else { continue };
        let (first, one) = *owners.entry(trust).or_insert((guest, vhost));
        if (&one.owner, &one.socket_mode) != (&vhost.owner, &vhost.socket_mode) {
            let message = format!(
                "the guests of trust \"{trust}\" have a window in common, which is a file; give them the `owner` and \
                 `socket_mode` of guest \"{}\"",
                first.name
            );
            problem(problems, item, "window_mb", message);
        }
    }
}
