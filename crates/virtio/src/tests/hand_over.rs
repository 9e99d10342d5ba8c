//! A port goes on where a different one stopped, as in a different process.

use super::requests::message;
use super::*;
use mem::{Frozen, Port};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

const GET_FEATURES: u32 = 1;
const SET_VRING_ENABLE: u32 = 18;
const SET_MTU: u32 = 20;

/// Opens a second port for the same guest, which waits.
pub(super) fn heir(dir: &Dir, queues: u16) -> Opened {
    let port = GuestPort { socket: dir.0.join("heir.sock"), waits: true, ..dir.port(Role::Server, queues) };
    open(&port).unwrap()
}

/// Makes a second port go on. The first one ends like a process that is killed: it does not say goodbye to
/// its VMM.
pub(super) fn hand_over(dir: &Dir, port: Opened, queues: u16) -> Opened {
    let next = heir(dir, queues);
    next.port.adopt(freeze(&port).unwrap()).unwrap();
    next.port.thaw();
    std::mem::forget(port);
    std::fs::remove_file(dir.0.join("heir.sock")).unwrap();
    next
}

pub(super) fn freeze(port: &Opened) -> Option<Frozen> {
    port.port.freeze().unwrap()
}

#[test]
fn rings_go_on_in_every_form() {
    for packed in [Features::default(), Features::RING_PACKED] {
        for event in [Features::default(), Features::EVENT_IDX] {
            for order in [Features::default(), Features::IN_ORDER] {
                let features = with(&[packed, event, order]);
                let (dir, mut port, mut vmm) = connected("hand-over", features, 1);
                // In each place of the ring, in both of its laps.
                for _ in 0..2 * SIZE {
                    works(&mut port, &mut vmm);
                    // These wait.
                    vmm.send(2, &frame(300, 3));
                    vmm.offer(3, 2048);
                    port = hand_over(&dir, port, 1);
                    assert_eq!(receive(&mut port, 0), [(frame(300, 3), Offload::default())]);
                    assert!(vmm.drivers[FROM_GUEST].used().is_some());
                    deliver(&port, 0, &frame(500, 4), &Offload::default()).unwrap();
                    assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 512);
                }
                assert_eq!(port.port.status().malformed, 0);
            }
        }
    }
}

#[test]
fn the_connection_goes_on() {
    let features = with(&[Features::MQ, Features::RING_PACKED]);
    let (dir, port, mut vmm) = connected("connection", features, 2);
    let before = port.port.status();
    let mut port = hand_over(&dir, port, 2);
    assert_eq!(port.port.status(), before);
    // These requests need features that were negotiated before, and memory that comes and goes.
    for ring in 0..4 {
        let base = vmm.frontend.get_vring_base(ring).unwrap();
        vmm.start_ring(ring, base).unwrap();
    }
    vmm.enable(2, false);
    let more = Memory::new(0x1_0000);
    let region = more.region(GPA + vmm.memory.len as u64, USER + 0x100_0000);
    vmm.frontend.add_mem_region(&region).unwrap();
    port = hand_over(&dir, port, 2);
    assert_eq!(port.port.status().queues, 1, "what was disabled stays so");
    vmm.drivers[FROM_GUEST].offer(&[(GPA + vmm.memory.len as u64, 112, false)], false).unwrap();
    assert_eq!(receive(&mut port, 0), [(vec![0; 100], Offload::default())]);
    works_after(&mut port, &mut vmm, 1);
    vmm.frontend.remove_mem_region(&region).unwrap();
    port = hand_over(&dir, port, 2);
    works(&mut port, &mut vmm);
    assert_eq!(vmm.frontend.get_queue_num().unwrap(), 2);
    assert!(vmm.frontend.set_features(1 << 14).is_err(), "refusals are answered");
    drop(vmm);
    until(|| !port.port.status().up);
}

#[test]
fn pages_written_are_logged_on() {
    use std::os::unix::fs::FileExt;
    use vhost::VhostUserDirtyLogRegion;
    let (dir, port, mut vmm) = connected("log-on", BASE, 1);
    let log = File::from(memfd_create("log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    let len = (GPA + 0x10_0000) / mem::LOG_PAGE / 8;
    log.set_len(len).unwrap();
    let base = VhostUserDirtyLogRegion { mmap_size: len, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    vmm.frontend.set_log_base(0, Some(base)).unwrap();
    vmm.frontend.set_features(BASE.0 | Features::LOG_ALL.0 | Features::PROTOCOL_FEATURES.0).unwrap();
    let mut port = hand_over(&dir, port, 1);
    log.write_all_at(&vec![0; len as usize], 0).unwrap();
    works(&mut port, &mut vmm);
    let mut bits = vec![0; len as usize];
    log.read_exact_at(&mut bits, 0).unwrap();
    let page = (GPA + vmm.buffer(1)) / mem::LOG_PAGE;
    assert_ne!(bits[(page / 8) as usize] & 1 << (page % 8), 0);
}

#[test]
fn a_port_that_nobody_takes_over_goes_on() {
    let (_dir, mut port, mut vmm) = connected("thaw", with(&[Features::RING_PACKED]), 1);
    for _ in 0..3 {
        works(&mut port, &mut vmm);
        drop(freeze(&port).unwrap());
        assert!(!port.port.is_up());
        vmm.send(2, &frame(300, 3));
        assert_eq!(receive(&mut port, 0), []);
        port.port.thaw();
        assert!(port.port.is_up());
        assert_eq!(receive(&mut port, 0), [(frame(300, 3), Offload::default())]);
        assert!(vmm.drivers[FROM_GUEST].used().is_some());
    }
    // Told twice, or without having stopped.
    port.port.thaw();
    works(&mut port, &mut vmm);
}

/// Returns what the kernel says of the port's thread.
fn of_thread(thread: &str, file: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut of = tasks
        .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == thread));
    std::fs::read_to_string(of.next().unwrap().join(file)).unwrap()
}

/// Waits until the thread is asleep in `ppoll` or `poll`, and returns how often it has waited then.
fn waits_of(thread: &str) -> String {
    until(|| ["271 ", "7 ", "73 "].iter().any(|number| of_thread(thread, "syscall").starts_with(number)));
    let status = of_thread(thread, "status");
    status.lines().find(|line| line.starts_with("voluntary")).unwrap().to_owned()
}

/// The port's thread has a low weight, and on a busy machine it would keep all guests' packets waiting.
#[test]
fn a_port_stops_without_its_thread() {
    let dir = Dir::new("rest");
    let mut port = open(&GuestPort { name: "rests".to_owned(), ..dir.port(Role::Server, 1) }).unwrap();
    let mut vmm = Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), BASE, 1);
    for is_told_before in [true, true, false] {
        if is_told_before {
            port.port.rest();
            port.port.await_rest();
        }
        works(&mut port, &mut vmm);
        let before = waits_of("vhost-rests");
        assert!(freeze(&port).is_some() && !port.port.is_up());
        assert!(!is_told_before || waits_of("vhost-rests") == before);
        port.port.thaw();
        works(&mut port, &mut vmm);
        // Requests are served again.
        vmm.frontend.get_queue_num().unwrap();
    }
    // It rests, and is not stopped.
    port.port.rest();
    port.port.await_rest();
    port.port.thaw();
    works(&mut port, &mut vmm);
}

#[test]
fn a_vmm_is_answered_by_the_process_that_goes_on() {
    let (dir, port, vmm) = connected("who-answers", BASE, 1);
    let frozen = freeze(&port).unwrap();
    let frontend = vmm.frontend.clone();
    let stopped = std::thread::spawn(move || frontend.get_vring_base(FROM_GUEST));
    until(|| rustix::io::ioctl_fionread(&frozen.descriptors[0]).unwrap() > 0);
    let next = heir(&dir, 1);
    next.port.adopt(frozen).unwrap();
    // The other process fails after that.
    port.port.thaw();
    stopped.join().unwrap().unwrap();
    assert!(next.port.is_up() && !port.port.is_up());
    std::mem::forget(next);
}

pub(super) fn end_of(vmm: &Vmm) -> UnixStream {
    // SAFETY: open as long as the front end.
    let end = unsafe { std::os::fd::BorrowedFd::borrow_raw(vmm.frontend.as_raw_fd()) };
    UnixStream::from(end.try_clone_to_owned().unwrap())
}

#[test]
fn half_a_message_waits_for_its_rest_wherever_that_comes() {
    let (dir, mut port, mut vmm) = connected("half", BASE, 1);
    let mut stream = end_of(&vmm);
    for (cut, mtu) in [(1, 1400), (11, 1401), (12, 1402), (19, 1403)] {
        for code in [SET_MTU, SET_VRING_ENABLE] {
            let value = if code == SET_MTU { mtu } else { 1 << 32 };
            let message = message(code, 1 | 8, value);
            stream.write_all(&message[..cut]).unwrap();
            for _ in 0..3 {
                port = hand_over(&dir, port, 1);
            }
            stream.write_all(&message[cut..]).unwrap();
            let mut answer = [0; 20];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!((answer[0], answer[12]), (code as u8, 0));
        }
        assert_eq!(port.port.status().mtu, Some(mtu as u16));
    }
    works(&mut port, &mut vmm);
    stream.write_all(&message(SET_MTU, 1, 1400)[..13]).unwrap();
    drop((vmm, stream));
    until(|| !port.port.status().up);
}

/// Returns whether the thread that serves the VMM of this port waits.
fn sleeps(port: &str) -> bool {
    let of = |thread: &Path, file| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let name = format!("vhost-{port}");
    let thread = threads.find(|thread| of(thread, "comm").trim_end() == name).unwrap();
    of(&thread, "stat").contains(") S ")
}

/// Returns how many answers of 20 bytes a socket takes that nobody reads, before it is not writable.
fn unread_answers() -> u64 {
    let (from, _to) = UnixStream::pair().unwrap();
    let is_writable = |_: &u64| {
        let mut now = [PollFd::new(&from, PollFlags::OUT)];
        poll(&mut now, Some(&Timespec::default())).unwrap() == 1
    };
    let write = |_| assert_eq!((&from).write(&[0; 20]).unwrap(), 20);
    (0..).take_while(is_writable).inspect(|_| write(())).count() as u64
}

#[test]
fn a_vmm_that_reads_no_answers_gets_them_from_the_process_that_goes_on() {
    const MANY: usize = 1000;
    let taken = unread_answers();
    assert!((1..MANY as u64).contains(&taken), "{taken}");
    for (name, sends_more) in [("deaf", true), ("mute", false)] {
        let dir = Dir::new(name);
        let config = GuestPort { name: name.to_owned(), ..dir.port(Role::Server, 1) };
        let mut port = open(&config).unwrap();
        let mut vmm = Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 1);
        let mut stream = end_of(&vmm);
        let header = [GET_FEATURES, 1, 0].map(u32::to_le_bytes);
        stream.write_all(&header.as_flattened().repeat(MANY)).unwrap();
        if !sends_more {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        until(|| rustix::io::ioctl_fionread(&stream).unwrap() >= 20 * taken && sleeps(name));
        for _ in 0..3 {
            port = hand_over(&dir, port, 1);
        }
        let mut answers = vec![0; 20 * MANY];
        stream.read_exact(&mut answers).unwrap();
        assert!(answers.chunks(20).all(|answer| answer == &answers[..20]));
        if sends_more {
            works(&mut port, &mut vmm);
        }
    }
}

#[test]
fn a_byte_out_of_band_is_one_of_the_message() {
    let (dir, mut port, mut vmm) = connected("urgent", BASE, 1);
    let mut stream = end_of(&vmm);
    let message = message(SET_MTU, 1 | 8, 1400);
    stream.write_all(&message[..19]).unwrap();
    match send(&stream, &message[19..], SendFlags::OOB) {
        // A kernel without them.
        Err(Errno::OPNOTSUPP) => return,
        sent => assert_eq!(sent, Ok(1)),
    }
    port = hand_over(&dir, port, 1);
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[12]), (SET_MTU as u8, 0));
    works(&mut port, &mut vmm);
}

#[test]
fn no_vmm_keeps_others_from_being_handed_over() {
    let (dir, port, mut vmm) = connected("veto", with(&[Features::MQ]), 2);
    let all = vmm.frontend.get_protocol_features().unwrap();
    for bits in [all | VhostUserProtocolFeatures::PAGEFAULT, VhostUserProtocolFeatures::all()] {
        assert!(vmm.frontend.set_protocol_features(bits).is_err());
    }
    // A ring outside of the guest's memory.
    vmm.frontend.get_vring_base(2).unwrap();
    let nowhere = VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags: 0,
        desc_table_addr: 0x1000,
        used_ring_addr: 0x2000,
        avail_ring_addr: 0x3000,
        log_addr: None,
    };
    vmm.frontend.set_vring_addr(2, &nowhere).unwrap();
    assert!(vmm.frontend.set_vring_kick(2, &vmm.kicks[2]).is_err());
    let mut port = hand_over(&dir, port, 2);
    works(&mut port, &mut vmm);
    assert_eq!(port.port.status().queues, 1);
    // Memory that is gone: this VMM alone has to connect again.
    vmm.memory.file.set_len(0).unwrap();
    let next = hand_over(&dir, port, 2);
    until(|| next.port.status().fault.is_some());
    assert!(!next.port.is_up());
}

#[test]
fn a_port_without_a_vmm_has_no_session() {
    let dir = Dir::new("nobody");
    let config = dir.port(Role::Server, 1);
    let port = open(&config).unwrap();
    assert_eq!(port.port.share().unwrap().len(), 1);
    assert!(freeze(&port).is_none());
    // A VMM that comes meanwhile waits.
    let stream = UnixStream::connect(&config.socket).unwrap();
    port.port.thaw();
    let mut port = port;
    works(&mut port, &mut Vmm::new(stream, BASE, 1));
    let next = heir(&dir, 1);
    let stream = UnixStream::connect(dir.0.join("heir.sock")).unwrap();
    next.port.thaw();
    works(&mut { next }, &mut Vmm::new(stream, BASE, 1));
}

#[test]
fn what_is_no_session_is_refused() {
    let (dir, port, mut vmm) = connected("no-session", BASE, 1);
    let refused = |next: &Arc<dyn Port>, frozen: Frozen| next.adopt(frozen).unwrap_err().to_string();
    let state = || freeze(&port).unwrap();
    let next = heir(&dir, 1);
    assert!(refused(&next.port, Frozen::default()).contains("EOF"));
    let Frozen { state: text, descriptors } = state();
    assert!(
        refused(&next.port, Frozen { state: text.clone(), descriptors: Vec::new() }).contains("connection")
    );
    drop(descriptors);
    let cases: [(&str, &str, &str); 3] = [
        (r#""features":"#, r#""features":4"#, "not offered"),
        (r#""protocol":"#, r#""protocol":7"#, "not offered"),
        (r#""call":true"#, r#""call":false"#, "other descriptors"),
    ];
    for (old, new, why) in cases {
        port.port.thaw();
        assert!(port.port.is_up());
        let Frozen { state, descriptors } = state();
        let state = state.replacen(old, new, 1);
        let said = refused(&next.port, Frozen { state, descriptors });
        assert!(said.contains(why), "{said}");
        next.port.thaw();
        next.port.freeze().unwrap();
    }
    let text = text.replace(r#","log""#, r#","later":[1],"log""#);
    port.port.thaw();
    assert!(port.port.is_up());
    let Frozen { descriptors, .. } = state();
    next.port.adopt(Frozen { state: text, descriptors }).expect("what a later version adds is no fault");
    next.port.thaw();
    std::mem::forget(port);
    works(&mut { next }, &mut vmm);
}

/// `cargo bolero test -p virtio tests::hand_over::any_session_is_survived`: whatever another daemon says of a session,
/// it is refused, or the port goes on; and a VMM can connect after that.
#[test]
fn any_session_is_survived() {
    #[derive(Debug, bolero::TypeGenerator)]
    struct Ring {
        size: u16,
        at: Option<[u32; 3]>,
        base: u32,
        enabled: bool,
        kick: u8,
        has: [bool; 2],
    }
    #[derive(Debug, bolero::TypeGenerator)]
    struct Said {
        features: u64,
        protocol: u16,
        mtu: u16,
        regions: Vec<[u32; 4]>,
        log: Option<[u32; 2]>,
        rings: Vec<Ring>,
        is_plausible: bool,
        descriptors: Vec<u8>,
    }
    let dir = Dir::new("any-session");
    let port = heir(&dir, 2).port;
    let memory = Memory::new(0x10_0000);
    let next = std::panic::AssertUnwindSafe(port.clone());
    bolero::check!().with_type::<Said>().for_each(|said| {
        let near = |n: u32| if said.is_plausible { n % 0x1_0000 * 16 } else { n };
        let features = if said.is_plausible { BASE.0 } else { said.features };
        let regions = said.regions.iter().take(4).map(|[gpa, len, user, offset]| {
            serde_json::json!({"gpa": near(*gpa), "len": near(*len), "user": near(*user), "offset": near(*offset)})
        });
        let rings = said.rings.iter().take(6).map(|ring| {
            let kick = ["None", "Polled", "Descriptor"][usize::from(ring.kick % 3)];
            let at = ring.at.map(|at| at.map(near));
            let [call, err] = ring.has;
            serde_json::json!({
                "size": ring.size, "at": at, "base": ring.base, "told": ring.base, "ran": ring.enabled, "enabled": ring.enabled, "kick": kick, "call": call,
                "err": err,
            })
        });
        let log = said.log.map(|[len, offset]| serde_json::json!({"gpa": 0, "len": len, "user": 0, "offset": offset}));
        let state = serde_json::json!({
            "features": features, "protocol": said.protocol & 0xb, "mtu": said.mtu,
            "regions": regions.collect::<Vec<_>>(), "log": log, "rings": rings.collect::<Vec<_>>(),
        });
        let (stream, vmm) = UnixStream::pair().unwrap();
        let other = |choice: &u8| match choice % 3 {
            0 => memory.file.as_fd().try_clone_to_owned().unwrap(),
            1 => vmm.as_fd().try_clone_to_owned().unwrap(),
            _ => rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap(),
        };
        let descriptors = said.descriptors.iter().take(24).map(other);
        let descriptors = std::iter::once(stream.into()).chain(descriptors).collect();
        let _ = next.adopt(Frozen { state: state.to_string(), descriptors });
        drop(vmm);
        next.thaw();
        let _ = next.freeze();
    });
    port.thaw();
    // Any session that it still serves ends with the VMM, which is gone.
    drop(Vmm::new(UnixStream::connect(dir.0.join("heir.sock")).unwrap(), BASE, 2));
}
