//! Daemons that come one after the other, with the same VMM and guest.

use super::*;
use crate::{Journals, open_by};
use std::io::Read;
use std::sync::Arc;

pub(super) const RINGS: [usize; 2] = [TO_GUEST, FROM_GUEST];

/// Returns a daemon's port, and a connection to its socket. The daemon's memory has nothing of a different
/// daemon.
fn daemon(dir: &Dir) -> (Opened, UnixStream) {
    let config = dir.port(Role::Server, 1);
    let journals = Arc::new(Journals::open(&dir.0).unwrap());
    let port = open_by(&config, sockets::here(), Some(journals), None).unwrap();
    (port, UnixStream::connect(&config.socket).unwrap())
}

impl Vmm {
    /// Goes on with a different daemon. Rings start at these positions.
    pub(super) fn reconnect(&mut self, stream: UnixStream, features: Features, bases: [u32; 2]) {
        (self.frontend, _) = negotiate(stream, features, RINGS.len(), &self.memory);
        if let Some((form, file)) = &self.kept {
            self.frontend.set_inflight_fd(form, file.as_raw_fd()).unwrap();
        }
        for (ring, base) in RINGS.into_iter().zip(bases) {
            self.start_ring(ring, base).unwrap();
            self.enable(ring, true);
        }
    }
}

pub(super) fn forms() -> impl Iterator<Item = Features> {
    let either = |feature| [Features::default(), feature];
    let order = either(Features::IN_ORDER);
    let forms =
        order.into_iter().flat_map(move |order| either(Features::RING_PACKED).map(|form| [order, form]));
    forms.map(|extra| with(&extra))
}

/// Rings of every form go on where they were; of packed ones the VMM names the position at which they once started.
#[test]
fn a_guest_goes_on_with_each_daemon_that_comes() {
    for features in forms() {
        let dir = Dir::new("daemons");
        let (mut port, stream) = daemon(&dir);
        let mut vmm = Vmm::new(stream, features, 1);
        let first = vmm.drivers[0].first_base();
        for round in 0..3 * usize::from(SIZE) {
            (0..1 + round % 3).for_each(|_| works(&mut port, &mut vmm));
            vmm.send(0, &frame(100, 1));
            drop(port);
            let stream;
            (port, stream) = daemon(&dir);
            vmm.reconnect(stream, features, [first; 2]);
            assert_eq!(receive(&mut port, 0), [(frame(100, 1), Offload::default())]);
            vmm.drivers[FROM_GUEST].used().unwrap();
        }
    }
}

/// A VMM that stopped a ring knows its position, and is right: the guest may boot anew without a daemon.
#[test]
fn a_ring_that_the_vmm_stopped_starts_where_the_vmm_says() {
    let features = with(&[Features::RING_PACKED]);
    let dir = Dir::new("stopped");
    for reset in [false, true] {
        let (mut port, stream) = daemon(&dir);
        let mut vmm = Vmm::new(stream, features, 1);
        (0..5).for_each(|_| works(&mut port, &mut vmm));
        let mut bases = RINGS.map(|ring| vmm.frontend.get_vring_base(ring).unwrap());
        // Has an answer when the daemon has sent that to the request before.
        vmm.frontend.get_features().unwrap();
        drop(port);
        if reset {
            for ring in RINGS {
                vmm.drivers[ring] = Driver::new(vmm.memory.ram, ring as u64 * RING_LEN, SIZE, true, false);
                // It does not clear what it fills later: by its descriptors, the ring could be in use.
                let last = ring as u64 * RING_LEN + 16 * (u64::from(SIZE) - 1);
                vmm.memory.ram.write(last + 14, &0x8080_u16.to_le_bytes());
            }
            bases = [vmm.drivers[0].first_base(); 2];
        }
        let (mut port, stream) = daemon(&dir);
        vmm.reconnect(stream, features, bases);
        (0..2 * SIZE).for_each(|_| works(&mut port, &mut vmm));
    }
}

/// The last writes of the daemon on the other host into a packed ring did not come along. The driver is
/// notified when this daemon returns chains because of that.
#[test]
fn a_guest_from_another_host_stands_for_nothing_that_is_missing() {
    let features = with(&[Features::RING_PACKED]);
    let (there, here) = (Dir::new("there"), Dir::new("here"));
    let (port, stream) = daemon(&there);
    let mut vmm = Vmm::new(stream, features, 1);
    vmm.offer(1, 2048);
    let (at, len) = (TO_GUEST as u64 * RING_LEN, 16 * usize::from(SIZE));
    let before = vmm.memory.ram.read(at, len);
    deliver(&port, 0, &frame(1000, 2), &Offload::default()).unwrap();
    let bases = RINGS.map(|ring| vmm.frontend.get_vring_base(ring).unwrap());
    drop(port);
    assert_ne!(vmm.memory.ram.read(at, len), before);
    vmm.memory.ram.write(at, &before);
    let _ = vmm.calls[TO_GUEST].read();
    let (mut port, stream) = daemon(&here);
    vmm.reconnect(stream, features, bases);
    until(|| vmm.calls[TO_GUEST].read().is_ok());
    assert_eq!(vmm.drivers[TO_GUEST].used(), Some((0, 0)));
    works(&mut port, &mut vmm);
}

/// As VMMs do it, the link goes down with the connection, and up with the next one.
#[test]
fn a_vmm_whose_guest_has_no_link_is_turned_away() {
    for features in forms() {
        let dir = Dir::new("link");
        let (mut port, stream) = daemon(&dir);
        let mut vmm = Vmm::new(stream, features, 1);
        let first = vmm.drivers[0].first_base();
        works(&mut port, &mut vmm);
        let connect = || UnixStream::connect(&dir.port(Role::Server, 1).socket).unwrap();
        for _ in 0..2 {
            port.port.set_link(false).unwrap();
            until(|| !port.port.is_up());
            assert_eq!(connect().read(&mut [0]).unwrap(), 0);
            port.port.set_link(true).unwrap();
            vmm.reconnect(connect(), features, [first; 2]);
            works(&mut port, &mut vmm);
        }
    }
}
