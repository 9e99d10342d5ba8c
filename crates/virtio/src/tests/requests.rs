//! Requests of a VMM, and which of them are refused.

use super::migration::{LogFile, log_all};
use super::*;
use mem::LOG_PAGE;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Builds a message with a 64-bit value.
pub(super) fn message(code: u32, flags: u32, value: u64) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..12].copy_from_slice([code, flags, 8].map(u32::to_le_bytes).as_flattened());
    bytes[12..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// Connects and acknowledges REPLY_ACK. The returned function sends messages and returns the status of each answer.
pub(super) fn asking(config: &GuestPort) -> impl FnMut(u32, u64) -> u8 + use<> {
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
    let pipe = unsafe { EventFd::from_raw_fd(rustix::io::dup(&read).unwrap().into_raw_fd()) };
    assert!(vmm.frontend.set_vring_call(0, &pipe).is_err());
    until(|| refused("eventfd"));
}

/// A message of a VMM; for some values of `form` it has another length than its request.
#[derive(Debug, bolero::TypeGenerator)]
struct Message {
    code: u8,
    need_reply: bool,
    form: u8,
    small: [u8; 3],
    words: [u64; 4],
    descriptor: u8,
}

impl Message {
    /// Returns the body: two small numbers (a ring and a value, or a number of regions), addresses and lengths.
    fn body(&self) -> Vec<u8> {
        let [ring, value, shift] = self.small;
        let numbers =
            [u32::from(ring % 4), u32::from(value % 4) << (shift % 9)].map(u32::to_le_bytes).concat();
        let words = self.words.map(|word| (word % 0x10_0000).to_le_bytes()).concat();
        let mut body = match self.code % 46 {
            2 | 16 => self.words[0].to_le_bytes().to_vec(),
            1 | 3 | 4 | 15 | 17 | 34 | 36 | 40 => Vec::new(),
            5 | 9 | 37 | 38 => [numbers, words].concat(),
            6 => words[..16].to_vec(),
            31 | 32 => [&words[..16], &numbers[..4]].concat(),
            _ => numbers,
        };
        if self.form.is_multiple_of(8) {
            body.resize(usize::from(self.form / 4), 1);
        }
        body
    }
}

#[test]
fn any_vhost_user_messages_are_survived() {
    let dir = Dir::new("messages");
    let config = dir.port(Role::Server, 2);
    let port = open(&config).unwrap();
    let memory = Memory::new(0x10_0000);
    let eventfd = EventFd::new(EFD_NONBLOCK).unwrap();
    let up = std::panic::AssertUnwindSafe(|| port.port.status().up);
    // A worker that finds the queue busy goes on without it.
    let traffic = std::panic::AssertUnwindSafe(|| {
        port.tx[0].burst(&mut |room| {
            let _ = room.put(&frame(60, 0), &[], 0, 0, &Offload::default());
        })
    });
    let logged = AtomicUsize::new(0);
    bolero::check!().with_type::<(bool, Vec<Message>)>().for_each(|(polite, messages)| {
        use vmm_sys_util::sock_ctrl_msg::ScmSocket;
        let stream = UnixStream::connect(&config.socket).unwrap();
        let mut guest = polite.then(|| {
            // The messages meet a guest that is up, and whose memory is logged.
            let vmm = Vmm::new(stream.try_clone().unwrap(), with(&[Features::MRG_RXBUF]), 2);
            let log = LogFile::new();
            log.hand_over(&vmm);
            log_all(&vmm, with(&[Features::MRG_RXBUF]), true);
            (vmm, log)
        });
        let send = |code: u32, flags: u32, body: &[u8], fd: Option<i32>| {
            let header = [code, flags, body.len() as u32].map(u32::to_le_bytes).concat();
            let fds: Vec<i32> = fd.into_iter().collect();
            // The other side may have hung up already.
            let _ = stream.send_with_fds(&[&header, body], &fds);
        };
        for (i, m) in messages.iter().take(32).enumerate() {
            if let Some((vmm, _)) = &mut guest {
                // Long buffers, of which a short frame changes little.
                vmm.offer(i, 3 * 4096);
                (*traffic)();
            }
            let fd = match m.descriptor % 4 {
                0 => Some(memory.file.as_raw_fd()),
                1 => Some(eventfd.as_raw_fd()),
                _ => None,
            };
            send(u32::from(m.code % 46), if m.need_reply { 9 } else { 1 }, &m.body(), fd);
        }
        let marks =
            |(vmm, log): &(Vmm, LogFile)| log.take().iter().any(|page| *page >= vmm.buffer(0) / LOG_PAGE);
        logged.fetch_add(usize::from(guest.as_ref().is_some_and(marks)), Ordering::Relaxed);
        drop((stream, guest));
        // It is still there for the next one, and finally for a well-behaved VMM.
        until(|| !(*up)());
    });
    drop(Vmm::new(UnixStream::connect(&config.socket).unwrap(), BASE, 2));
    assert!(logged.into_inner() > 0, "no page was ever logged");
}
