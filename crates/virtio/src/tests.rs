//! Ports with a mock VMM on their socket and mock drivers on their rings.

mod frames;
mod hand_over;
mod hostile;
mod inflight;
mod memory;
mod migration;
mod requests;
mod restart;
mod sessions;
mod window;

use crate::features::Features;
use crate::ring::mock::{Driver, GPA, RING_LEN, Ram, USER};
use crate::{GuestPort, Role, open};
use mem::{Burst, Csum, Gso, NoRoom, Offload, Opened, gather, scatter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
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
            memory: Default::default(),
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

    /// Returns the offset of the guest's buffer number `i`, of 4 KiB.
    fn buffer(&self, i: usize) -> u64 {
        self.drivers.len() as u64 * RING_LEN + 4096 * i as u64
    }

    /// Makes the guest send `frame` with `header`, from buffer `i`, through ring `ring`.
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

    /// Makes the guest offer `len` bytes of buffer `i` to receive.
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

/// Opens a server port, and connects a VMM whose guest is up.
fn connected(name: &str, features: Features, queues: u16) -> (Dir, Opened, Vmm) {
    let dir = Dir::new(name);
    let config = dir.port(Role::Server, queues);
    let port = open(&config).unwrap();
    let vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), features, queues);
    assert_eq!(port.port.status().queues, queues);
    (dir, port, vmm)
}

/// Checks that frames go both ways.
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

/// Checks that frames go both ways, after the driver has collected `used` chains.
fn works_after(port: &mut Opened, vmm: &mut Vmm, used: usize) {
    assert_eq!((0..used).filter_map(|_| vmm.drivers[FROM_GUEST].used()).count(), used);
    works(port, vmm);
}
