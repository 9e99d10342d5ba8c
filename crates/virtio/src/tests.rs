//! Ports with a mock VMM on their socket and mock drivers on their rings.

mod hand_over;
mod hostile;
mod inflight;
mod migration;
mod restart;
mod window;

use crate::features::Features;
use crate::ring::mock::{Driver, GPA, RING_LEN, Ram, USER};
use crate::{Error, GuestPort, Role, open};
use mem::{Burst, Csum, Gso, NoRoom, Offload, Opened, gather, scatter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const SIZE: u16 = 64;
/// Bytes of the guest's buffers, after its rings.
const BUFFERS: usize = 0x4_0000;
/// Only makes a hang fail instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;

/// A directory for one test's socket.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("virtio-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn port(&self, role: Role, queues: u16) -> GuestPort {
        GuestPort {
            name: "vm".to_owned(),
            socket: self.0.join("vm.sock"),
            role,
            queues,
            mtu: 1500,
            owner: None,
            mode: 0o620,
            offload: true,
            migrates: true,
            waits: false,
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A memory file mapped by the guest.
struct Memory {
    file: File,
    ram: Ram,
    base: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let file =
            File::from(memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(len as u64).unwrap();
        // SAFETY: a new mapping.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let base = base.unwrap().cast();
        Self { file, ram: Ram::at(base, len), base, len }
    }

    fn region(&self, gpa: u64, user: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: gpa,
            memory_size: self.len as u64,
            userspace_addr: user,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped.
        unsafe { munmap(self.base.cast(), self.len) }.unwrap();
    }
}

/// Acknowledges these features, and tells of the memory.
fn negotiate(stream: UnixStream, features: Features, rings: usize, memory: &Memory) -> (Frontend, u64) {
    let mut frontend = Frontend::from_stream(stream, rings as u64);
    frontend.set_owner().unwrap();
    let offered = Features(frontend.get_features().unwrap());
    assert!(offered.has(features) && offered.has(Features::PROTOCOL_FEATURES));
    let protocol = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocol).unwrap();
    // From here on every request is answered, so that its effect is complete when it returns.
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let features = features.0 | Features::PROTOCOL_FEATURES.0;
    frontend.set_features(features).unwrap();
    frontend.set_mem_table(&[memory.region(GPA, USER)]).unwrap();
    (frontend, features)
}

/// A VMM and a guest whose driver is up.
struct Vmm {
    frontend: Frontend,
    memory: Memory,
    drivers: Vec<Driver>,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Memory for requests in flight.
    kept: Option<(VhostUserInflight, File)>,
}

impl Vmm {
    fn new(stream: UnixStream, features: Features, queues: u16) -> Self {
        let rings = usize::from(2 * queues);
        let memory = Memory::new(rings * RING_LEN as usize + BUFFERS);
        let (frontend, features) = negotiate(stream, features, rings, &memory);
        let (packed, in_order) =
            (Features(features).has(Features::RING_PACKED), Features(features).has(Features::IN_ORDER));
        let driver = |i: usize| Driver::new(memory.ram, i as u64 * RING_LEN, SIZE, packed, in_order);
        let drivers: Vec<_> = (0..rings).map(driver).collect();
        let eventfds = || (0..rings).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect::<Vec<_>>();
        let vmm = Self { frontend, drivers, kicks: eventfds(), calls: eventfds(), memory, kept: None };
        (0..rings).for_each(|i| vmm.start_ring(i, vmm.drivers[i].first_base()).unwrap());
        (0..rings).for_each(|i| vmm.enable(i, true));
        vmm
    }

    fn start_ring(&self, index: usize, base: u32) -> vhost::Result<()> {
        let at = self.drivers[index].addresses();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: at.desc,
            used_ring_addr: at.device,
            avail_ring_addr: at.driver,
            log_addr: None,
        };
        self.frontend.set_vring_num(index, SIZE)?;
        self.frontend.set_vring_base(index, base as u16)?;
        self.frontend.set_vring_addr(index, &config)?;
        self.frontend.set_vring_call(index, &self.calls[index])?;
        // The call descriptor was signalled when it was set.
        let _ = self.calls[index].read();
        self.frontend.set_vring_kick(index, &self.kicks[index])
    }

    fn enable(&self, index: usize, enable: bool) {
        self.frontend.clone().set_vring_enable(index, enable).unwrap();
    }

    /// Offset of the guest's buffer number `i`, of 4 KiB.
    fn buffer(&self, i: usize) -> u64 {
        self.drivers.len() as u64 * RING_LEN + 4096 * i as u64
    }

    /// The guest sends `frame` with `header`, from buffer `i`, through ring `ring`.
    fn send_by(&mut self, ring: usize, i: usize, header: &[u8], frame: &[u8]) {
        let at = self.buffer(i);
        self.memory.ram.write(at, header);
        self.memory.ram.write(at + 64, frame);
        let parts = [(GPA + at, header.len() as u32, false), (GPA + at + 64, frame.len() as u32, false)];
        self.drivers[ring].offer(&parts, i % 2 == 1).unwrap();
    }

    fn send(&mut self, i: usize, frame: &[u8]) {
        self.send_by(FROM_GUEST, i, &[0; 12], frame);
    }

    /// The guest offers `len` bytes of buffer `i` to receive.
    fn offer(&mut self, i: usize, len: u32) {
        let at = GPA + self.buffer(i);
        self.drivers[TO_GUEST].offer(&[(at, len, true)], i % 2 == 1).unwrap();
    }
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

/// Polls a burst of packets; returns their bytes and offloads.
fn receive(port: &mut Opened, queue: usize) -> Vec<(Vec<u8>, Offload)> {
    let mut burst = Burst::new();
    let count = port.rx[queue].poll(&mut burst, usize::MAX);
    assert_eq!(count, burst.len());
    let packets = burst.packets().iter().map(|p| {
        let mut bytes = vec![0; p.len as usize];
        assert_eq!(gather(burst.segments(p), 0, &mut bytes), bytes.len());
        (bytes, p.offload)
    });
    let packets = packets.collect();
    port.rx[queue].release(&mut burst);
    packets
}

/// Sends one frame to the guest.
fn deliver(port: &Opened, queue: usize, bytes: &[u8], offload: &Offload) -> Result<(), NoRoom> {
    let mut done = Err(NoRoom::Full);
    assert!(port.tx[queue].burst(&mut |room| {
        done = room.reserve(bytes.len(), offload).map(|to| {
            assert_eq!(to.iter().map(mem::Segment::len).sum::<usize>(), bytes.len());
            assert_eq!(scatter(bytes, to, 0), bytes.len());
        });
    }));
    done
}

fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::yield_now();
    }
}

const BASE: Features = Features(Features::VERSION_1.0 | Features::INDIRECT_DESC.0);

fn with(extra: &[Features]) -> Features {
    extra.iter().fold(BASE, |all, f| Features(all.0 | f.0))
}

/// A server port with a connected VMM whose guest is up.
fn connected(name: &str, features: Features, queues: u16) -> (Dir, Opened, Vmm) {
    let dir = Dir::new(name);
    let config = dir.port(Role::Server, queues);
    let port = open(&config).unwrap();
    let vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), features, queues);
    assert_eq!(port.port.status().queues, queues);
    (dir, port, vmm)
}

/// Frames go both ways.
fn works(port: &mut Opened, vmm: &mut Vmm) {
    let sent = frame(200, 1);
    vmm.send(0, &sent);
    assert_eq!(receive(port, 0), [(sent, Offload::default())]);
    assert!(vmm.drivers[FROM_GUEST].used().is_some());
    vmm.offer(1, 2048);
    let sent = frame(1000, 2);
    deliver(port, 0, &sent, &Offload::default()).unwrap();
    let (_, written) = vmm.drivers[TO_GUEST].used().unwrap();
    assert_eq!(written, 1012);
    assert_eq!(vmm.memory.ram.read(vmm.buffer(1) + 12, 1000), sent);
}

#[test]
fn frames_pass_in_every_form_of_ring() {
    for packed in [Features::default(), Features::RING_PACKED] {
        for event in [Features::default(), Features::EVENT_IDX] {
            for order in [Features::default(), Features::IN_ORDER] {
                let (_dir, mut port, mut vmm) = connected("forms", with(&[packed, event, order]), 1);
                for _ in 0..100 {
                    works(&mut port, &mut vmm);
                }
                assert_eq!(port.port.status().malformed, 0);
            }
        }
    }
}

#[test]
fn a_long_frame_takes_several_mergeable_buffers() {
    for packed in [Features::default(), Features::RING_PACKED] {
        let (_dir, port, mut vmm) = connected("mergeable", with(&[Features::MRG_RXBUF, packed]), 1);
        (0..5).for_each(|i| vmm.offer(i, 100));
        // 488 bytes and a header fill five buffers to the last byte.
        assert_eq!(deliver(&port, 0, &frame(489, 3), &Offload::default()), Err(NoRoom::Full));
        assert!(vmm.drivers[TO_GUEST].used().is_none());
        deliver(&port, 0, &frame(388, 3), &Offload::default()).unwrap();
        let mut received = Vec::new();
        for i in 0..4 {
            assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 100);
            received.extend(vmm.memory.ram.read(vmm.buffer(i), 100));
        }
        assert_eq!(received[10..12], [4, 0], "num_buffers");
        assert_eq!(received[12..], frame(388, 3));
        assert!(vmm.drivers[TO_GUEST].used().is_none());
    }
}

#[test]
fn a_frame_longer_than_single_buffers_is_refused() {
    let (_dir, mut port, mut vmm) = connected("single", BASE, 1);
    vmm.offer(0, 1000);
    assert_eq!(deliver(&port, 0, &frame(989, 0), &Offload::default()), Err(NoRoom::TooLong));
    deliver(&port, 0, &frame(988, 0), &Offload::default()).unwrap();
    assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 1000);
    assert_eq!(deliver(&port, 0, &frame(100, 0), &Offload::default()), Err(NoRoom::Full));
    works(&mut port, &mut vmm);
}

#[test]
fn offloads_pass_as_negotiated() {
    let features = with(&[Features::CSUM, Features::HOST_TSO4, Features::GUEST_CSUM, Features::GUEST_TSO4]);
    let (_dir, mut port, mut vmm) = connected("offload", features, 1);
    let offload = Offload {
        csum: Csum::Partial { start: 34, offset: 16 },
        gso: Some(Gso { v6: false, size: 1448, hdr_len: 54, ecn: false }),
    };
    let header = mem::vnet::build(&offload);
    vmm.send_by(FROM_GUEST, 0, &header, &frame(3000, 0));
    assert_eq!(receive(&mut port, 0)[0].1, offload);
    // TSO over IPv6 was not negotiated; a runt is not a frame.
    let v6 = mem::vnet::build(&Offload { gso: offload.gso.map(|g| Gso { v6: true, ..g }), ..offload });
    vmm.send_by(FROM_GUEST, 1, &v6, &frame(3000, 0));
    vmm.send_by(FROM_GUEST, 2, &[0; 12], &frame(13, 0));
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 2);
    assert_eq!((0..3).filter_map(|_| vmm.drivers[FROM_GUEST].used()).count(), 3);
    let accepts = port.tx[0].accepts();
    assert!(accepts.csum && accepts.tso4 && !accepts.tso6 && !accepts.ecn);
    vmm.offer(0, 4096);
    deliver(&port, 0, &frame(3000, 0), &offload).unwrap();
    assert_eq!(vmm.memory.ram.read(vmm.buffer(0), 10), header[..10]);
}

#[test]
fn a_legacy_driver_has_a_short_header() {
    let (_dir, mut port, mut vmm) = connected("legacy", Features::default(), 1);
    let at = vmm.buffer(0);
    vmm.memory.ram.write(at + 10, &frame(60, 9));
    vmm.drivers[FROM_GUEST].offer(&[(GPA + at, 70, false)], false).unwrap();
    assert_eq!(receive(&mut port, 0), [(frame(60, 9), Offload::default())]);
    vmm.drivers[TO_GUEST].offer(&[(GPA + at, 100, true)], false).unwrap();
    deliver(&port, 0, &frame(60, 5), &Offload::default()).unwrap();
    assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 70);
}

#[test]
fn each_queue_is_enabled_on_its_own() {
    let (_dir, mut port, mut vmm) = connected("queues", with(&[Features::MQ]), 2);
    works(&mut port, &mut vmm);
    vmm.send_by(3, 1, &[0; 12], &frame(90, 1));
    assert_eq!(receive(&mut port, 1), [(frame(90, 1), Offload::default())]);
    vmm.enable(2, false);
    vmm.enable(3, false);
    assert_eq!(port.port.status().queues, 1);
    assert_eq!(deliver(&port, 1, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    // What a disabled queue holds is discarded and returned.
    while vmm.drivers[3].used().is_some() {}
    vmm.send_by(3, 1, &[0; 12], &frame(90, 1));
    assert_eq!(receive(&mut port, 1), []);
    assert!(vmm.drivers[3].used().is_some());
    works(&mut port, &mut vmm);
}

#[test]
fn events_come_only_while_armed() {
    for form in [&[][..], &[Features::EVENT_IDX], &[Features::RING_PACKED, Features::EVENT_IDX]] {
        let event_idx = form.contains(&Features::EVENT_IDX);
        let (_dir, mut port, mut vmm) = connected("events", with(form), 1);
        let readable = |port: &Opened, timeout: Duration| {
            let fd = PollFd::from_borrowed_fd(port.rx[0].event_fd(), PollFlags::IN);
            poll(&mut [fd], Some(&Timespec::try_from(timeout).unwrap())).unwrap() == 1
        };
        assert!(readable(&port, PATIENCE), "a queue that came up wants to be looked at");
        port.rx[0].disarm();
        assert!(!readable(&port, Duration::ZERO));
        for _ in 0..10 {
            assert!(!port.rx[0].arm());
            vmm.send(1, &frame(60, 0));
            assert!(vmm.drivers[FROM_GUEST].kick_wanted(event_idx, 1));
            vmm.kicks[FROM_GUEST].write(1).unwrap();
            assert!(readable(&port, PATIENCE));
            assert!(port.rx[0].arm(), "packets are waiting");
            port.rx[0].disarm();
            assert!(!readable(&port, Duration::ZERO));
            assert_eq!(receive(&mut port, 0).len(), 1);
            vmm.send(1, &frame(60, 0));
            assert!(!vmm.drivers[FROM_GUEST].kick_wanted(event_idx, 1));
            while vmm.drivers[FROM_GUEST].used().is_some() {}
            vmm.drivers[FROM_GUEST].want_interrupts(true, event_idx);
            let _ = vmm.calls[FROM_GUEST].read();
            assert_eq!(receive(&mut port, 0).len(), 1);
            while vmm.drivers[FROM_GUEST].used().is_some() {}
            assert_eq!(vmm.calls[FROM_GUEST].read().unwrap(), 1, "the driver is interrupted once");
            vmm.drivers[FROM_GUEST].want_interrupts(false, event_idx);
        }
    }
}

#[test]
fn new_buffers_need_no_event() {
    for form in [&[][..], &[Features::EVENT_IDX], &[Features::RING_PACKED]] {
        let event_idx = form.contains(&Features::EVENT_IDX);
        let (_dir, _port, mut vmm) = connected("buffers", with(form), 1);
        // According to its index, the first one is wanted in memory that is all zero.
        vmm.offer(2, 2000);
        vmm.offer(3, 2000);
        assert!(!vmm.drivers[TO_GUEST].kick_wanted(event_idx, 1), "{form:?}");
    }
}

#[test]
fn a_server_outlives_its_vmms() {
    let (dir, mut port, mut vmm) = connected("server", BASE, 1);
    for _ in 0..3 {
        works(&mut port, &mut vmm);
        drop(vmm);
        until(|| !port.port.status().up);
        assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
        assert_eq!(receive(&mut port, 0), []);
        vmm =
            Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), with(&[Features::RING_PACKED]), 1);
    }
    works(&mut port, &mut vmm);
}

#[test]
fn a_client_finds_its_vmm_again() {
    let dir = Dir::new("client");
    let config = dir.port(Role::Client, 1);
    let mut port = open(&config).unwrap();
    assert!(!port.port.status().up);
    for _ in 0..2 {
        let listener = UnixListener::bind(&config.socket).unwrap();
        let mut vmm = Vmm::new(listener.accept().unwrap().0, BASE, 1);
        works(&mut port, &mut vmm);
        std::fs::remove_file(&config.socket).unwrap();
        drop(vmm);
        until(|| !port.port.status().up);
    }
    // The VMM's file is not ours to remove.
    let _listener = UnixListener::bind(&config.socket).unwrap();
    drop(port);
    assert!(config.socket.exists());
}

#[test]
fn a_stopped_ring_goes_on_where_it_was() {
    for packed in [Features::default(), Features::RING_PACKED] {
        let (_dir, mut port, mut vmm) = connected("stop", with(&[packed]), 1);
        for _ in 0..SIZE {
            works(&mut port, &mut vmm);
            for ring in [TO_GUEST, FROM_GUEST] {
                let base = vmm.frontend.get_vring_base(ring).unwrap();
                assert!(!port.port.status().up);
                vmm.start_ring(ring, base).unwrap();
            }
        }
        works(&mut port, &mut vmm);
    }
}

#[test]
fn memory_comes_and_goes() {
    let (_dir, mut port, mut vmm) = connected("hotplug", BASE, 1);
    assert_eq!(vmm.frontend.get_max_mem_slots().unwrap(), 509);
    let more = Memory::new(0x1_0000);
    // The region begins where the guest's memory ends, so that a buffer can span both.
    let end = GPA + vmm.memory.len as u64;
    let region = more.region(end, USER + 0x100_0000);
    let across = |vmm: &mut Vmm| {
        vmm.memory.ram.write(vmm.memory.len as u64 - 12, &[0; 12]);
        more.ram.write(0, &frame(100, 7));
        vmm.drivers[FROM_GUEST].offer(&[(end - 12, 112, false)], false).unwrap();
    };
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 1);
    vmm.frontend.add_mem_region(&region).unwrap();
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), [(frame(100, 7), Offload::default())]);
    works_after(&mut port, &mut vmm, 2);
    vmm.frontend.add_mem_region(&region).expect("the same again, for the next queue pair");
    vmm.frontend.remove_mem_region(&region).unwrap();
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 2);
    works_after(&mut port, &mut vmm, 1);
}

/// Like `works`, with `used` chains that the driver has yet to collect first.
fn works_after(port: &mut Opened, vmm: &mut Vmm, used: usize) {
    assert_eq!((0..used).filter_map(|_| vmm.drivers[FROM_GUEST].used()).count(), used);
    works(port, vmm);
}

#[test]
fn memory_that_is_truncated_disables_its_guest_alone() {
    let (dir, mut port, mut vmm) = connected("truncated", BASE, 1);
    let (_other_dir, mut other, mut other_vmm) = connected("bystander", BASE, 1);
    vmm.send(0, &frame(200, 1));
    let mut burst = Burst::new();
    assert_eq!(port.rx[0].poll(&mut burst, usize::MAX), 1);
    // All memory disappears: the polled packet, and the rings.
    vmm.memory.file.set_len(0).unwrap();
    let mut bytes = [1; 200];
    gather(burst.segments(&burst.packets()[0]), 0, &mut bytes);
    assert_eq!(bytes, [0; 200]);
    port.rx[0].release(&mut burst);
    let status = port.port.status();
    assert!(!status.up && status.fault.unwrap().contains("memory went away"));
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    assert!(!port.rx[0].arm());
    works(&mut other, &mut other_vmm);
    assert_eq!(other.port.status().fault, None);
    // A new VMM, whose memory stays, is served.
    drop(vmm.frontend);
    until(|| port.port.status().features.is_empty());
    let mut vmm = Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), BASE, 1);
    works(&mut port, &mut vmm);
}

#[test]
fn a_corrupted_ring_disables_its_guest_until_it_starts_again() {
    let (_dir, mut port, mut vmm) = connected("corrupt", BASE, 1);
    vmm.drivers[FROM_GUEST].corrupt(Some(SIZE + 1), None);
    assert_eq!(receive(&mut port, 0), []);
    let status = port.port.status();
    assert!(!status.up && status.fault.unwrap().contains("index"));
    assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    // The driver resets the device.
    for ring in [TO_GUEST, FROM_GUEST] {
        vmm.frontend.get_vring_base(ring).unwrap();
        vmm.drivers[ring] = Driver::new(vmm.memory.ram, ring as u64 * RING_LEN, SIZE, false, false);
    }
    for ring in [TO_GUEST, FROM_GUEST] {
        vmm.start_ring(ring, 0).unwrap();
    }
    assert_eq!(port.port.status().fault, None);
    works(&mut port, &mut vmm);
}

/// A message with a 64-bit value.
fn message(code: u32, flags: u32, value: u64) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..12].copy_from_slice([code, flags, 8].map(u32::to_le_bytes).as_flattened());
    bytes[12..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Connects and acknowledges REPLY_ACK. The returned function sends messages and returns the status of each answer.
fn asking(config: &GuestPort) -> impl FnMut(u32, u64) -> u8 + use<> {
    let mut stream = UnixStream::connect(&config.socket).unwrap();
    let protocol = VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MTU;
    stream.write_all(&message(16, 1, protocol.bits())).unwrap();
    move |code, value| {
        stream.write_all(&message(code, 1 | 8, value)).unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..12], message(code, 1 | 4, 0)[..12]);
        reply[12]
    }
}

#[test]
fn the_mtu_of_the_vmm_is_shown() {
    let dir = Dir::new("mtu");
    let config = dir.port(Role::Server, 1);
    let port = open(&config).unwrap();
    let mut ask = asking(&config);
    let mut set_mtu = |mtu| ask(20, mtu);
    assert_eq!(set_mtu(1400), 0);
    assert_eq!(port.port.status().mtu, Some(1400));
    assert_eq!(set_mtu(9000), 0, "more than the network has is only warned of");
    assert_eq!(port.port.status().mtu, Some(9000));
    assert_eq!(set_mtu(67), 1);
    assert_eq!(set_mtu(65536), 1);
    assert_eq!(port.port.status().mtu, Some(9000));
}

#[test]
fn the_device_status_is_kept_and_zero_stops_all_rings_where_they_are() {
    let dir = Dir::new("status");
    let config = dir.port(Role::Server, 1);
    let mut port = open(&config).unwrap();
    let stream = UnixStream::connect(&config.socket).unwrap();
    let mut vmm = Vmm::new(stream.try_clone().unwrap(), BASE, 1);
    works(&mut port, &mut vmm);
    let set = |status| (&stream).write_all(&message(39, 1, status)).unwrap();
    set(15);
    (&stream).write_all([40, 1, 0].map(u32::to_le_bytes).as_flattened()).unwrap();
    let mut reply = [0; 20];
    (&stream).read_exact(&mut reply).unwrap();
    assert_eq!(reply, message(40, 1 | 4, 15));
    assert!(port.port.is_up());
    set(0);
    until(|| !port.port.is_up());
    for ring in [TO_GUEST, FROM_GUEST] {
        let base = vmm.frontend.get_vring_base(ring).unwrap();
        assert!(base > 0);
        vmm.start_ring(ring, base).unwrap();
    }
    works(&mut port, &mut vmm);
}

#[test]
fn rings_may_be_enabled_before_anything_is_known_of_them() {
    let dir = Dir::new("enable");
    let config = dir.port(Role::Server, 1);
    let _port = open(&config).unwrap();
    let mut ask = asking(&config);
    assert_eq!(ask(18, 1 << 32), 0);
    assert_eq!(ask(18, 1 << 32 | 1), 0);
    assert_eq!(ask(18, 1 << 32 | 2), 1, "no such ring");
    assert_eq!(ask(18, 0), 0);
}

#[test]
fn what_can_not_be_used_is_refused() {
    let dir = Dir::new("refused");
    let config = dir.port(Role::Server, 1);
    let port = open(&config).unwrap();
    let mut vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 1);
    // When the VMM receives the refusal, it may not be in the status yet.
    let refused = |why: &str| port.port.status().fault.is_some_and(|f| f.contains(why));
    assert!(vmm.frontend.set_features(1 << 14).is_err(), "UFO was not offered");
    until(|| refused("0x4000"));
    // Not memory: a file on a disk is not available everywhere, a pipe is.
    let (read, _write) = std::io::pipe().unwrap();
    let mut region = vmm.memory.region(GPA + 0x1_0000_0000, USER + 0x1_0000_0000);
    region.mmap_handle = read.as_raw_fd();
    assert!(vmm.frontend.add_mem_region(&region).is_err());
    until(|| refused("neither a memfd"));
    region.mmap_handle = vmm.memory.file.as_raw_fd();
    region.memory_size += 1;
    assert!(vmm.frontend.add_mem_region(&region).is_err());
    until(|| refused("shorter"));
    // Nor a descriptor on which a worker could hang. SAFETY: a duplicate of its own.
    let pipe = unsafe { EventFd::from_raw_fd(rustix::io::dup(&read).unwrap().into_raw()) };
    assert!(vmm.frontend.set_vring_call(0, &pipe).is_err());
    until(|| refused("eventfd"));
}

/// Takes the descriptor from its owner.
trait IntoRaw {
    fn into_raw(self) -> i32;
}

impl IntoRaw for std::os::fd::OwnedFd {
    fn into_raw(self) -> i32 {
        std::os::fd::IntoRawFd::into_raw_fd(self)
    }
}

#[test]
fn only_a_stale_socket_file_is_replaced() {
    let dir = Dir::new("socket");
    let config = dir.port(Role::Server, 1);
    // Nobody listens there any more.
    drop(UnixListener::bind(&config.socket).unwrap());
    let port = open(&config).unwrap();
    assert_eq!(config.socket.metadata().unwrap().permissions().mode() & 0o777, 0o620);
    assert!(matches!(open(&config), Err(Error::Socket(sockets::Error::InUse(_)))));
    drop(port);
    assert!(!config.socket.exists());
    std::fs::write(&config.socket, "precious").unwrap();
    assert!(matches!(open(&config), Err(Error::Socket(sockets::Error::NotSocket(_)))));
    assert_eq!(std::fs::read(&config.socket).unwrap(), b"precious");
    let long = GuestPort { socket: dir.0.join("x".repeat(300)), ..config.clone() };
    assert!(matches!(open(&long), Err(Error::Socket(sockets::Error::Os { .. }))));
    assert!(matches!(open(&GuestPort { queues: 0, ..config }), Err(Error::Queues(0))));
}

#[test]
fn any_vhost_user_messages_are_survived() {
    #[derive(Debug, bolero::TypeGenerator)]
    struct Message {
        code: u8,
        need_reply: bool,
        value: u64,
        small: [u8; 8],
        more: Option<[u64; 5]>,
        descriptor: u8,
    }
    let dir = Dir::new("messages");
    let config = dir.port(Role::Server, 2);
    let port = open(&config).unwrap();
    let memory = Memory::new(0x10_0000);
    let eventfd = EventFd::new(EFD_NONBLOCK).unwrap();
    let up = std::panic::AssertUnwindSafe(|| port.port.status().up);
    let handshake = [(15, 0), (16, 0xa019), (1, 0), (2, BASE.0 | Features::PROTOCOL_FEATURES.0)];
    bolero::check!().with_type::<(bool, Vec<Message>)>().for_each(|(polite, messages)| {
        use vmm_sys_util::sock_ctrl_msg::ScmSocket;
        let stream = UnixStream::connect(&config.socket).unwrap();
        let send = |code: u32, flags: u32, body: &[u8], fd: Option<i32>| {
            let header = [code, flags, body.len() as u32].map(u32::to_le_bytes).concat();
            let fds: Vec<i32> = fd.into_iter().collect();
            // The other side may have hung up already.
            let _ = stream.send_with_fds(&[&header, body], &fds);
        };
        if *polite {
            for (code, value) in handshake {
                let body = u64::to_le_bytes(value);
                send(code, 1, if code % 2 == 1 { &[] } else { &body }, None);
            }
        }
        for m in messages.iter().take(32) {
            let mut body = match m.code % 3 {
                0 => vec![],
                1 => m.value.to_le_bytes().to_vec(),
                _ => m.small.iter().map(|b| b % 4).collect(),
            };
            body.extend(m.more.iter().flatten().flat_map(|w| (w % 0x10_0000).to_le_bytes()));
            let fd = match m.descriptor % 4 {
                0 => Some(memory.file.as_raw_fd()),
                1 => Some(eventfd.as_raw_fd()),
                _ => None,
            };
            send(u32::from(m.code % 46), if m.need_reply { 9 } else { 1 }, &body, fd);
        }
        drop(stream);
        // It is still there for the next one, and finally for a well-behaved VMM.
        until(|| !(*up)());
    });
    drop(Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 2));
}
