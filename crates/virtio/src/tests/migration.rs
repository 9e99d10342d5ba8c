//! The log of pages written: whatever the device changes in a guest's memory is in it.

use super::*;
use mem::LOG_PAGE;
use std::os::unix::fs::FileExt;
use vhost::VhostUserDirtyLogRegion;

/// Bytes of the log: bits for all pages up to the end of the test's memory.
const LOG: u64 = (GPA + 0x10_0000) / LOG_PAGE / 8;

/// The VMM's end of a log.
pub struct LogFile(File);

impl LogFile {
    pub fn new() -> Self {
        let file = File::from(memfd_create("log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(LOG).unwrap();
        Self(file)
    }

    pub fn hand_over(&self, vmm: &Vmm) {
        let base =
            VhostUserDirtyLogRegion { mmap_size: LOG, mmap_offset: 0, mmap_handle: self.0.as_raw_fd() };
        vmm.frontend.set_log_base(0, Some(base)).unwrap();
    }

    /// Returns the marked pages, counted from the first of the guest's memory, and marks them as clean.
    pub fn take(&self) -> Vec<u64> {
        let first = GPA / LOG_PAGE / 8;
        let mut bits = vec![0; (LOG - first) as usize];
        self.0.read_exact_at(&mut bits, first).unwrap();
        self.0.write_all_at(&vec![0; bits.len()], first).unwrap();
        (0..8 * (LOG - first)).filter(|page| bits[(page / 8) as usize] & 1 << (page % 8) != 0).collect()
    }
}

pub fn log_all(vmm: &Vmm, features: Features, log: bool) {
    let log = if log { Features::LOG_ALL } else { Features::default() };
    vmm.frontend.set_features(features.0 | log.0 | Features::PROTOCOL_FEATURES.0).unwrap();
}

/// A generator of numbers that are random enough (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Makes the device do something: it delivers one or two frames in a burst, receives, or sleeps.
fn act(port: &mut Opened, random: &mut Random, longest: u64) {
    let len = 14 + random.below(longest - 13) as usize;
    match random.below(5) {
        0 => drop(deliver(port, 0, &frame(len, 1), &Offload::default())),
        1 | 2 => {
            let (copied, reserved) = (frame(len, 2), frame(60, 3));
            port.tx[0].burst(&mut |room| {
                let _ = room.put(&copied, &[], 0, 0, &Offload::default());
                if let Ok(to) = room.reserve(reserved.len(), &Offload::default()) {
                    scatter(&reserved, to, 0);
                }
                let _ = room.put(&reserved, &[], 0, 0, &Offload::default());
            });
        }
        3 => drop(receive(port, 0)),
        _ => {
            port.rx[0].arm();
            port.rx[0].disarm();
        }
    }
}

/// Offers buffers that start anywhere and cross pages, or are too short for a header.
fn offer_buffers(vmm: &mut Vmm, random: &mut Random, indirect: bool) {
    let i = random.below(BUFFERS as u64 / 4096 - 1) as usize;
    for long in [0, 2000, 2000] {
        let (at, len) = (vmm.buffer(i) + random.below(4096), 1 + long + random.below(100) as u32);
        let _ = vmm.drivers[TO_GUEST].offer(&[(GPA + at, len, true)], indirect);
    }
}

/// Offers a chain of 19 pages anywhere, the header first, as Linux does if buffers are not merged.
fn offer_pages(vmm: &mut Vmm, random: &mut Random, indirect: bool, packed: bool) {
    let (pages, last) = (BUFFERS as u64 / 4096, 18);
    let mut page = || GPA + vmm.buffer(random.below(pages - 1) as usize);
    let head = page();
    let parts: Vec<_> =
        [(head, 12), (head + 12, 4084)].into_iter().chain((1..last).map(|_| (page(), 4096))).collect();
    if !indirect {
        let parts: Vec<_> = parts.into_iter().map(|(at, len)| (at, len, true)).collect();
        let _ = vmm.drivers[TO_GUEST].offer(&parts, false);
        return;
    }
    // No buffer is in the page of the table.
    let table = vmm.buffer(pages as usize - 1);
    for (i, (at, len)) in parts.iter().enumerate() {
        let (entry, write, next) = (table + 16 * i as u64, 2, u16::from(i < last));
        vmm.memory.ram.write(entry, &at.to_le_bytes());
        vmm.memory.ram.write(entry + 8, &u32::to_le_bytes(*len));
        let rest = if packed { [0, write] } else { [write | next, i as u16 + 1] };
        vmm.memory.ram.write(entry + 12, rest.map(u16::to_le_bytes).as_flattened());
    }
    vmm.drivers[TO_GUEST].offer_table((GPA + table, 16 * parts.len() as u32, true));
}

/// Fails if the device does something that changes a page and leaves it out of the log. Returns the number of pages
/// that changed.
fn changes(port: &mut Opened, vmm: &Vmm, log: &LogFile, random: &mut Random, longest: u64) -> usize {
    let before = vmm.memory.ram.read(0, vmm.memory.len);
    log.take();
    act(port, random, longest);
    let after = vmm.memory.ram.read(0, vmm.memory.len);
    let marked = log.take();
    let page = LOG_PAGE as usize;
    let pages = before.chunks(page).zip(after.chunks(page)).enumerate();
    let changed: Vec<u64> = pages.filter(|(_, (old, new))| old != new).map(|(i, _)| i as u64).collect();
    let left_out: Vec<_> = changed.iter().filter(|page| !marked.contains(page)).collect();
    assert!(left_out.is_empty(), "pages {left_out:?} changed, {marked:?} were marked");
    changed.len()
}

#[test]
fn every_page_that_changes_is_in_the_log() {
    for case in 0..16_u64 {
        let choose = |bit: u64, feature| if case & bit != 0 { feature } else { Features::default() };
        let merged = [
            choose(1, Features::RING_PACKED),
            choose(2, Features::EVENT_IDX),
            choose(4, Features::MRG_RXBUF),
        ];
        let features = with(&merged);
        let (packed, long) = (case & 1 != 0, case & 8 != 0);
        let (_dir, mut port, mut vmm) = connected("log", features, 1);
        let log = LogFile::new();
        log.hand_over(&vmm);
        log_all(&vmm, features, true);
        let (mut random, mut changed) = (Random(1 + case), 0);
        for round in 0..60 {
            let indirect = round % 2 == 1;
            // Some packets are longer than a chain, and rings are empty now and then.
            let longest = if long { 80_000 } else { 3000 };
            match long {
                true => offer_pages(&mut vmm, &mut random, indirect, packed),
                false => offer_buffers(&mut vmm, &mut random, indirect),
            }
            if random.below(3) == 0 {
                let at = GPA + vmm.buffer(random.below(BUFFERS as u64 / 4096 - 1) as usize);
                let _ = vmm.drivers[FROM_GUEST].offer(&[(at, 12, false), (at + 64, 60, false)], false);
            }
            changed += changes(&mut port, &vmm, &log, &mut random, longest);
            while vmm.drivers[TO_GUEST].used().is_some() || vmm.drivers[FROM_GUEST].used().is_some() {}
        }
        assert!(changed > if long { 100 } else { 5 }, "{case}: {changed}");
    }
}

#[test]
fn of_a_long_chain_only_what_a_packet_changes_is_in_the_log() {
    for merged in [Features::default(), Features::MRG_RXBUF] {
        let features = with(&[merged]);
        let (_dir, port, mut vmm) = connected("long-chain", features, 1);
        let log = LogFile::new();
        log.hand_over(&vmm);
        log_all(&vmm, features, true);
        let first = vmm.buffer(0) / LOG_PAGE;
        let mut marked = |port: &Opened, chain: &[(u64, u32)], len: usize, is_copied: bool| {
            let parts: Vec<_> =
                chain.iter().map(|(page, len)| (GPA + (first + page) * LOG_PAGE, *len, true)).collect();
            vmm.drivers[TO_GUEST].offer(&parts, false).unwrap();
            log.take();
            let bytes = frame(len, 1);
            let mut done = Err(NoRoom::Full);
            port.tx[0].burst(&mut |room| {
                done = match is_copied {
                    true => room.put(&bytes, &[], 0, 0, &Offload::default()),
                    false => room
                        .reserve(len, &Offload::default())
                        .map(|to| assert_eq!(scatter(&bytes, to, 0), len)),
                };
            });
            let pages: Vec<_> = log.take().into_iter().filter_map(|page| page.checked_sub(first)).collect();
            if done.is_ok() {
                vmm.drivers[TO_GUEST].used().unwrap();
            }
            (done, pages)
        };
        for is_copied in [true, false] {
            assert_eq!(marked(&port, &[(0, 10 * 4096)], 60, is_copied), (Ok(()), vec![0]));
            assert_eq!(
                marked(&port, &[(0, 12), (2, 8192), (6, 40_000)], 5000, is_copied),
                (Ok(()), vec![0, 2, 3])
            );
        }
        // A chain that stays with the driver is as it was.
        let lone = marked(&port, &[(20, 4096)], 5000, false);
        assert!(lone.0.is_err() && lone.1.is_empty(), "{lone:?}");
    }
}

#[test]
fn what_is_not_asked_for_is_not_logged() {
    let (_dir, mut port, mut vmm) = connected("unlogged", BASE, 1);
    let log = LogFile::new();
    log.hand_over(&vmm);
    works(&mut port, &mut vmm);
    assert_eq!(log.take(), [0; 0], "the features come later");
    log_all(&vmm, BASE, true);
    works(&mut port, &mut vmm);
    assert_ne!(log.take(), [0; 0]);
    // A larger log for more memory takes the place of the first one.
    let second = LogFile::new();
    second.hand_over(&vmm);
    works(&mut port, &mut vmm);
    assert!(log.take().is_empty() && !second.take().is_empty());
    log_all(&vmm, BASE, false);
    second.take();
    works(&mut port, &mut vmm);
    assert_eq!(second.take(), [0; 0]);
}

#[test]
fn a_log_that_cannot_be_used_ends_the_connection() {
    let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let files = [(device, LOG), (LogFile::new().0, LOG + 1), (LogFile::new().0, 0)];
    for (i, (file, mmap_size)) in files.into_iter().enumerate() {
        let (dir, mut port, vmm) = connected(&format!("bad-log-{i}"), BASE, 1);
        let base = VhostUserDirtyLogRegion { mmap_size, mmap_offset: 0, mmap_handle: file.as_raw_fd() };
        assert!(vmm.frontend.set_log_base(0, Some(base)).is_err());
        drop(vmm);
        // The next one is served.
        let mut vmm = Vmm::new(UnixStream::connect(dir.port(Role::Server, 1).socket).unwrap(), BASE, 1);
        works(&mut port, &mut vmm);
    }
}

#[test]
fn a_log_that_shrinks_costs_the_guest_alone() {
    let (_dir, mut port, mut vmm) = connected("shrunk-log", BASE, 1);
    let log = LogFile::new();
    log.hand_over(&vmm);
    log_all(&vmm, BASE, true);
    works(&mut port, &mut vmm);
    log.0.set_len(0).unwrap();
    vmm.send(0, &frame(60, 1));
    receive(&mut port, 0);
    until(|| port.port.status().fault.is_some());
}

#[test]
fn a_guest_that_arrived_is_announced() {
    let (_dir, mut port, mut vmm) = connected("rarp", BASE, 2);
    // This drains the event that woke the worker when the queue came up.
    port.rx[0].disarm();
    assert!(!port.rx[0].arm());
    // SEND_RARP by hand: the crate's front end has no call for it.
    let request = [19_u32, 1, 8].iter().flat_map(|word| word.to_le_bytes());
    let message: Vec<u8> = request.chain([2, 0, 0, 0, 0, 7, 0, 0]).collect();
    let socket = vmm.frontend.as_raw_fd();
    // SAFETY: the descriptor is open as long as the front end.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    rustix::io::write(socket, &message).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(port.rx[0].event_fd(), PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "the worker is woken");
    port.rx[0].disarm();
    let [(announced, offload)] = &receive(&mut port, 0)[..] else { panic!("one frame") };
    assert_eq!((&announced[6..14], offload), (&[2, 0, 0, 0, 0, 7, 0x80, 0x35][..], &Offload::default()));
    assert_eq!(receive(&mut port, 0), []);
    works(&mut port, &mut vmm);
}
