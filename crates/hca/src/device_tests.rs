//! Tests of the list of a device's applications.

use super::*;
use crate::base::budget::{DeviceBudget, HostBudget};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

/// Whoever takes an application out of the list closes its socket afterwards, without the list's lock.
#[test]
fn an_application_that_is_taken_out_is_still_connected() {
    let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0));
    let mut clients = Clients::default();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (ours, peer) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let socket = Arc::new(Untrusted::new(ours, &Arc::default()).unwrap());
        let inbox = Arc::new(Inbox::new(budget.clone()).unwrap());
        clients.all.push(Admitted { inbox, socket, who: Who::Local { pid: 1, uid: 0 } });
        peers.push(peer);
    }
    let is_connected = |peer: &OwnedFd| recv(peer, &mut [0_u8; 1], RecvFlags::empty()).is_err();
    let inbox = clients.all[1].inbox.clone();
    let ended = clients.remove(&inbox).unwrap();
    assert!(peers.iter().all(is_connected) && clients.remove(&inbox).is_none());
    drop(ended);
    assert_eq!(peers.iter().map(is_connected).collect::<Vec<_>>(), [true, false, true]);
}
