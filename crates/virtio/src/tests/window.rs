//! A file that a guest has as a device: a region beside its memory, at an offset of a file with a path.

use super::migration::{LogFile, log_all};
use super::*;
use crate::VmmEvent;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Addresses at which the guest and the VMM have the window.
const WINDOW_GPA: u64 = 1 << 36;
const WINDOW_USER: u64 = 3 << 44;
/// Bytes of the file before the window, and of the window.
const BEFORE: u64 = 2 << 20;
const WINDOW: u64 = 2 << 20;

/// Creates a file of memory by a path, so that it has no seals.
fn window() -> File {
    let path = format!("/dev/shm/virtio-{}-window", std::process::id());
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(BEFORE + WINDOW).unwrap();
    file
}

fn region(file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: WINDOW_GPA,
        memory_size: WINDOW,
        userspace_addr: WINDOW_USER,
        mmap_offset: BEFORE,
        mmap_handle: file.as_raw_fd(),
    }
}

fn id(file: &File) -> (u64, u64) {
    let of = file.metadata().unwrap();
    (of.dev(), of.ino())
}

#[test]
fn packets_travel_in_a_window_as_in_other_memory() {
    let (_dir, mut port, mut vmm) = connected("window", BASE, 1);
    let file = window();
    assert_eq!(port.port.memory_files(), [id(&vmm.memory.file)]);
    // It is plugged in while the guest runs.
    let mut regions = vec![vmm.memory.region(GPA, USER), region(&file)];
    vmm.frontend.set_mem_table(&regions).unwrap();
    assert_eq!(port.port.memory_files(), [id(&vmm.memory.file), id(&file)]);

    let sent = frame(900, 7);
    let at = WINDOW - 1000;
    file.write_all_at(&[[0; 12].as_slice(), &sent].concat(), BEFORE + at).unwrap();
    vmm.drivers[FROM_GUEST].offer(&[(WINDOW_GPA + at, 12 + 900, false)], false).unwrap();
    assert_eq!(receive(&mut port, 0), [(sent, Offload::default())]);

    vmm.drivers[TO_GUEST].offer(&[(WINDOW_GPA + 4096, 2000, true)], false).unwrap();
    let delivered = frame(1400, 9);
    deliver(&port, 0, &delivered, &Offload::default()).unwrap();
    let mut got = vec![0; 1400];
    file.read_exact_at(&mut got, BEFORE + 4096 + 12).unwrap();
    assert!(got == delivered);

    // Memory beyond the window's end is not the guest's.
    vmm.drivers[FROM_GUEST].offer(&[(WINDOW_GPA + WINDOW - 100, 200, false)], false).unwrap();
    assert!(receive(&mut port, 0).is_empty() && port.port.status().malformed == 1);
    regions.pop();
    vmm.frontend.set_mem_table(&regions).unwrap();
    assert_eq!(port.port.memory_files(), [id(&vmm.memory.file)]);
    drop(vmm);
    until(|| port.port.memory_files().is_empty());
}

#[test]
fn a_guest_that_must_stay_has_no_log() {
    let dir = Dir::new("stays");
    let port = GuestPort { migrates: false, ..dir.port(Role::Server, 1) };
    let _open = open(&port).unwrap();
    let stream = UnixStream::connect(&port.socket).unwrap();
    let mut frontend = Frontend::from_stream(stream, 2);
    frontend.set_owner().unwrap();
    assert!(!Features(frontend.get_features().unwrap()).has(Features::LOG_ALL));
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(!protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD));
    let all = (Features::LOG_ALL.0, VhostUserProtocolFeatures::LOG_SHMFD);
    frontend.set_protocol_features(protocol | all.1).unwrap_or(());
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert!(frontend.set_features(all.0 | Features::VERSION_1.0).is_err());
}

#[test]
fn who_watches_is_told_when_a_guest_may_begin_anew() {
    let dir = Dir::new("watched");
    let config = dir.port(Role::Server, 1);
    let (to, told) = std::sync::mpsc::channel();
    let watch: crate::Watch = std::sync::Arc::new(move |event| to.send(event).unwrap());
    let port = crate::open_by(&config, sockets::here(), None, Some(watch)).unwrap();
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let came = VmmEvent::Came(std::process::id().cast_signed());
    let vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 1);
    assert_eq!([next(), next()], [came, VmmEvent::Runs]);
    vmm.frontend.get_vring_base(TO_GUEST).unwrap();
    assert_eq!(told.try_recv(), Ok(VmmEvent::Halts), "before the answer");
    assert_eq!(next(), VmmEvent::Stopped);
    drop(vmm);
    assert_eq!(next(), VmmEvent::Left);
    let _vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 1);
    assert_eq!([next(), next()], [came, VmmEvent::Runs]);
    port.port.set_link(false).unwrap();
    assert_eq!(next(), VmmEvent::Halts);
    until(|| !port.port.is_up());
    drop(port);
    assert_eq!(told.iter().collect::<Vec<_>>(), []);
}

#[test]
fn who_watches_is_told_before_memory_is_copied() {
    let dir = Dir::new("copied");
    let config = dir.port(Role::Server, 1);
    let (to, told) = std::sync::mpsc::channel();
    let watch: crate::Watch = std::sync::Arc::new(move |event| to.send(event).unwrap());
    let _port = crate::open_by(&config, sockets::here(), None, Some(watch)).unwrap();
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let came = VmmEvent::Came(std::process::id().cast_signed());
    let vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 1);
    assert_eq!([next(), next()], [came, VmmEvent::Runs]);
    let log = LogFile::new();
    log.hand_over(&vmm);
    assert_eq!(told.try_recv(), Ok(VmmEvent::Halts), "before the answer");
    log_all(&vmm, BASE, true);
    // The VMM gives up.
    log_all(&vmm, BASE, false);
    assert_eq!(next(), VmmEvent::Runs);
}
