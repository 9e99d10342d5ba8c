//! VMMs that keep memory for requests in flight. No daemon here has a file for packed rings.

use super::hand_over::{freeze, hand_over};
use super::restart::{RINGS, forms};
use super::*;
use std::os::unix::fs::FileExt;

/// The form that VMMs ask for: that of the rings that they have.
const FORM: VhostUserInflight =
    VhostUserInflight { mmap_size: 0, mmap_offset: 0, num_queues: RINGS.len() as u16, queue_size: SIZE };

/// Returns a daemon's port, and a connection to its socket.
fn daemon(dir: &Dir) -> (Opened, UnixStream) {
    let config = dir.port(Role::Server, 1);
    (open(&config).unwrap(), UnixStream::connect(&config.socket).unwrap())
}

impl Vmm {
    /// Asks for memory, and keeps it.
    fn keep(&mut self) {
        let (form, file) = self.frontend.get_inflight_fd(&FORM).unwrap();
        self.frontend.set_inflight_fd(&form, file.as_raw_fd()).unwrap();
        self.kept = Some((form, file));
    }

    /// Replaces the memory by a file of the same length that begins with these bytes, as far as there is
    /// room.
    fn forge(&mut self, offset: u64, bytes: &[u8]) {
        let file =
            File::from(memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        let mut form = self.kept.as_ref().unwrap().0;
        form.mmap_offset = offset;
        file.set_len(form.mmap_size + offset).unwrap();
        let room = usize::try_from(form.mmap_size).unwrap();
        file.write_all_at(&bytes[..bytes.len().min(room)], offset).unwrap();
        self.kept = Some((form, file));
    }

    /// Leaves the daemon, and connects again.
    fn come_again(&mut self, dir: &Dir, features: Features, bases: [u32; 2]) {
        // SAFETY: open as long as the front end.
        let left = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.frontend.as_raw_fd()) };
        rustix::net::shutdown(left, rustix::net::Shutdown::Both).unwrap();
        self.reconnect(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), features, bases);
    }

    fn content(&self) -> Vec<u8> {
        let (form, file) = self.kept.as_ref().unwrap();
        let mut bytes = vec![0; form.mmap_size as usize];
        file.read_exact_at(&mut bytes, form.mmap_offset).unwrap();
        bytes
    }
}

#[test]
fn a_guest_goes_on_by_what_its_vmm_keeps() {
    for features in forms() {
        let dir = Dir::new("kept");
        let (mut port, stream) = daemon(&dir);
        let mut vmm = Vmm::new(stream, features, 1);
        let first = vmm.drivers[0].first_base();
        // Rings may run already.
        works(&mut port, &mut vmm);
        vmm.keep();
        for round in 0..3 * usize::from(SIZE) {
            (0..1 + round % 3).for_each(|_| works(&mut port, &mut vmm));
            vmm.send(0, &frame(100, 1));
            if round % 60 == 59 {
                port = hand_over(&dir, port, 1);
                // The descriptors of the VMM are in the other port, too, which did not end.
                std::fs::remove_file(dir.0.join("vm.sock")).unwrap();
            }
            if round % 7 == 6 {
                // The offset in the file is the VMM's matter.
                let bytes = vmm.content();
                vmm.forge(8 * (round as u64 % 600), &bytes);
            }
            drop(port);
            let stream;
            (port, stream) = daemon(&dir);
            vmm.reconnect(stream, features, [first; 2]);
            assert_eq!(receive(&mut port, 0), [(frame(100, 1), Offload::default())]);
            vmm.drivers[FROM_GUEST].used().unwrap();
        }
        assert_eq!(port.port.status().malformed, 0);
    }
}

/// A ring's part is a cache line, then 8 words and one for each descriptor, in whole cache lines.
#[test]
fn the_memory_is_laid_out_as_documented() {
    let features = with(&[Features::RING_PACKED]);
    let dir = Dir::new("layout");
    let (mut port, stream) = daemon(&dir);
    let mut vmm = Vmm::new(stream, features, 1);
    vmm.keep();
    works(&mut port, &mut vmm);
    let bytes = vmm.content();
    let part = 64 + 64 + 8 * usize::from(SIZE);
    assert_eq!(bytes.len(), 2 * part);
    for (ring, part) in bytes.chunks(part).enumerate() {
        let word = |at: usize| u64::from_le_bytes(part[8 * at..8 * at + 8].try_into().unwrap());
        assert_eq!((&part[..8], word(1)), (&b"viaduct1"[..], 0), "features, and version 0");
        let at = vmm.drivers[ring].addresses();
        assert_eq!([word(9), word(10), word(11)], [at.desc, at.driver, at.device]);
        // One chain was used: a buffer to receive, or a header and a frame.
        let slots = [1, 2][ring];
        assert_eq!(word(8), 0x8000 | (0x8000 | slots | slots << 16) << 32);
    }
    let split = with(&[]);
    let dir = Dir::new("layout-split");
    let (mut port, stream) = daemon(&dir);
    let mut vmm = Vmm::new(stream, split, 1);
    vmm.keep();
    works(&mut port, &mut vmm);
    assert!(vmm.content().iter().all(|byte| *byte == 0), "a split ring needs nothing");
}

#[test]
fn what_another_device_left_counts_for_nothing() {
    let features = with(&[Features::RING_PACKED]);
    let dir = Dir::new("another");
    let (mut port, stream) = daemon(&dir);
    let mut vmm = Vmm::new(stream, features, 1);
    vmm.keep();
    works(&mut port, &mut vmm);
    // The rest is ours: but without our features, it is not.
    let mut bytes = vmm.content();
    let part = bytes.len() / 2;
    bytes
        .chunks_mut(part)
        .for_each(|part| part[..16].copy_from_slice(&[[0; 8], [1, 0, 64, 0, 0, 0, 0, 0]].concat()));
    vmm.forge(0, &bytes);
    let bases = RINGS.map(|ring| vmm.frontend.get_vring_base(ring).unwrap());
    drop(port);
    let (mut port, stream) = daemon(&dir);
    vmm.reconnect(stream, features, bases);
    works(&mut port, &mut vmm);
    assert_eq!(vmm.content()[..8], *b"viaduct1");
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let (_dir, mut port, mut vmm) = connected("unfit", with(&[Features::RING_PACKED]), 1);
    vmm.keep();
    let (good, file) = vmm.kept.take().unwrap();
    let pipe = rustix::pipe::pipe().unwrap().0;
    let cases = [
        (VhostUserInflight { num_queues: 3, ..good }, file.as_raw_fd()),
        (VhostUserInflight { queue_size: 32_769, ..good }, file.as_raw_fd()),
        (VhostUserInflight { queue_size: SIZE + 8, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_size: good.mmap_size - 1, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_size: good.mmap_size + 4097, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_size: u64::MAX, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_offset: 8, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_offset: u64::MAX - 7, ..good }, file.as_raw_fd()),
        (VhostUserInflight { mmap_offset: 4, mmap_size: good.mmap_size - 4, ..good }, file.as_raw_fd()),
        (good, pipe.as_raw_fd()),
    ];
    for (form, file) in cases {
        assert!(vmm.frontend.set_inflight_fd(&form, file).is_err(), "{}", form.mmap_size);
        works(&mut port, &mut vmm);
    }
    // There is no answer that refuses.
    assert!(vmm.frontend.get_inflight_fd(&VhostUserInflight { num_queues: 3, ..FORM }).is_err());
    until(|| !port.port.status().up);
}

#[test]
fn memory_that_is_gone_ends_its_own_guest() {
    let features = with(&[Features::RING_PACKED]);
    let dir = Dir::new("gone");
    let (mut port, stream) = daemon(&dir);
    let mut vmm = Vmm::new(stream, features, 1);
    vmm.keep();
    assert!(vmm.kept.as_ref().unwrap().1.set_len(0).is_err(), "ours is sealed");
    vmm.forge(0, &[]);
    let (form, file) = vmm.kept.take().unwrap();
    vmm.frontend.set_inflight_fd(&form, file.as_raw_fd()).unwrap();
    works(&mut port, &mut vmm);
    file.set_len(0).unwrap();
    vmm.send(0, &frame(100, 1));
    receive(&mut port, 0);
    assert!(!port.port.is_up() && port.port.status().fault.is_some());
    let bases = RINGS.map(|ring| vmm.frontend.get_vring_base(ring).unwrap());
    vmm.drivers.iter_mut().for_each(|driver| while driver.used().is_some() {});
    vmm.come_again(&dir, features, bases);
    works(&mut port, &mut vmm);
}

/// A VMM that never asked for it is handed over to a version that does not know of it.
#[test]
fn what_nobody_uses_is_not_handed_over() {
    let (_dir, port, mut vmm) = connected("idle", with(&[Features::RING_PACKED]), 1);
    let bit = VhostUserProtocolFeatures::INFLIGHT_SHMFD.bits();
    let told = || {
        let state: serde_json::Value = serde_json::from_str(&freeze(&port).unwrap().state).unwrap();
        port.port.thaw();
        (state["protocol"].as_u64().unwrap() & bit != 0, state.get("inflight").is_some())
    };
    assert_eq!(told(), (false, false));
    vmm.keep();
    assert_eq!(told(), (true, true));
}

/// `cargo bolero test -p virtio tests::inflight::any_memory_is_survived`: whatever a VMM says that it kept, its guest
/// alone may suffer; and it may come again.
#[test]
fn any_memory_is_survived() {
    let features = with(&[Features::RING_PACKED]);
    let dir = Dir::new("any-memory");
    let (port, stream) = daemon(&dir);
    let mut vmm = Vmm::new(stream, features, 1);
    vmm.keep();
    let good = vmm.content();
    let state = std::panic::AssertUnwindSafe(std::cell::RefCell::new((port, vmm)));
    bolero::check!().with_type::<Vec<(u16, u64)>>().for_each(|words| {
        let (port, vmm) = &mut *state.borrow_mut();
        let mut bytes = good.clone();
        for (at, word) in words {
            let at = usize::from(*at) % (bytes.len() / 8);
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        vmm.forge(0, &bytes);
        vmm.come_again(&dir, features, [0x8000; 2]);
        vmm.send(0, &frame(100, 1));
        let _ = receive(port, 0);
        let _ = deliver(port, 0, &frame(100, 1), &Offload::default());
        // The guest boots anew.
        let _ = RINGS.map(|ring| vmm.frontend.get_vring_base(ring).unwrap());
        for (ring, driver) in vmm.drivers.iter_mut().enumerate() {
            *driver = Driver::new(vmm.memory.ram, ring as u64 * RING_LEN, SIZE, true, false);
        }
        RINGS.iter().for_each(|ring| vmm.start_ring(*ring, 0x8000).unwrap());
        works(port, vmm);
    });
}
