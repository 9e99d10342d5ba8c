//! Network namespaces for tests, and a bridge over two ports.

#![allow(dead_code, reason = "each test binary uses its part")]

use mem::{BURST, Burst, Csum, NoRoom, Offload, Opened, RxQueue, TxQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// An EtherType that no kernel sends on its own (IEEE 802, local experimental).
pub const EXPERIMENTAL: u16 = 0x88b5;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Moves the test's own thread into a fresh, empty network namespace.
pub fn isolate() {
    assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run it as root");
    // SAFETY: only this thread's network namespace changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace of our own");
    run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    run("ip link set lo up");
}

/// Runs a command in this thread's network namespace. Its arguments must not contain spaces.
pub fn run(command: &str) {
    output(command);
}

/// Runs a command like [`run`]; returns its output.
pub fn output(command: &str) -> String {
    let mut words = command.split_ascii_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().expect(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A named network namespace, deleted when dropped.
pub struct Net(String);

impl Net {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let net = Self(format!("wire-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
        run(&format!("ip netns add {}", net.0));
        net.exec("ip link set lo up");
        net
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn exec(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.0));
    }

    /// Runs `f` on a thread inside the namespace.
    pub fn inside<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.0)).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            f()
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Makes a veth pair: `device` in this thread's namespace, `eth0` with `addresses` in a new one, both up.
pub fn veth(device: &str, addresses: &[&str]) -> Net {
    let net = Net::new();
    pair(device, &net);
    for address in addresses {
        net.exec(&format!("ip addr add {address} dev eth0 nodad"));
        // The kernel accepts packets to an IPv6 address only a little later.
        let local = format!("local {} ", address.split('/').next().unwrap());
        let families = ["-4", "-6"].map(|v| format!("ip -n {} {v} route show table local", net.name()));
        eventually("the address is there", || families.iter().any(|show| output(show).contains(&local)));
    }
    net
}

/// Recreates the veth pair, in an existing namespace.
pub fn pair(device: &str, net: &Net) {
    run(&format!("ip link add {device} type veth peer name eth0 netns {}", net.name()));
    net.exec("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.eth0.accept_dad=0");
    net.exec("ip link set eth0 up");
    run(&format!("ip link set {device} up"));
    // The kernel drops frames until it notices the carrier, a little later.
    eventually("the pair is up", || {
        let far = format!("ip -n {} -o link show eth0", net.name());
        [far, format!("ip -o link show {device}")].iter().all(|show| output(show).contains("state UP"))
    });
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes an Ethernet frame of the experimental type.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9]);
    frame.extend(EXPERIMENTAL.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Sends a frame; returns the reason why there was no room or why it was refused.
pub fn send(tx: &dyn TxQueue, frame: &[u8], offload: Offload) -> Result<(), NoRoom> {
    let mut result = Ok(());
    let ran = tx.burst(&mut |room| {
        result = room.reserve(frame.len(), &offload).map(|segments| {
            assert_eq!(mem::scatter(frame, segments, 0), frame.len());
        });
        room.settle(&mut |refusal| result = Err(refusal.why));
    });
    assert!(ran, "nobody else holds the queue");
    result
}

pub fn receive(rx: &mut dyn RxQueue, wanted: impl Fn(&[u8]) -> bool) -> (Vec<u8>, Offload) {
    let mut burst = Burst::new();
    let start = Instant::now();
    loop {
        // Takes one frame at a time, so that no other is lost.
        if rx.poll(&mut burst, 1) == 0 {
            assert!(start.elapsed() < PATIENCE, "no frame in time");
            if !rx.arm() {
                let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
                poll(&mut [PollFd::from_borrowed_fd(rx.event_fd(), PollFlags::IN)], Some(&timeout)).unwrap();
            }
            rx.disarm();
            continue;
        }
        let packet = burst.packets()[0];
        let mut bytes = vec![0; packet.len as usize];
        assert_eq!(mem::gather(burst.segments(&packet), 0, &mut bytes), bytes.len());
        rx.release(&mut burst);
        if wanted(&bytes) {
            return (bytes, packet.offload);
        }
    }
}

/// Returns whether an experimental frame came in on any of the queues.
pub fn came(queues: &mut [Box<dyn RxQueue>]) -> bool {
    let mut burst = Burst::new();
    queues.iter_mut().any(|rx| {
        rx.poll(&mut burst, 1 << 20);
        let found = burst.packets().iter().any(|packet| {
            let mut head = [0; 18];
            mem::gather(burst.segments(packet), 0, &mut head);
            experimental(&head)
        });
        rx.release(&mut burst);
        found
    })
}

/// Returns whether a frame has the experimental type, tagged or not.
pub fn experimental(frame: &[u8]) -> bool {
    frame[12..14] == EXPERIMENTAL.to_be_bytes() || frame[16..18] == EXPERIMENTAL.to_be_bytes()
}

/// Counts the frames that a bridge forwarded.
#[derive(Default)]
pub struct Seen {
    pub frames: AtomicUsize,
    pub large: AtomicUsize,
    pub partial: AtomicUsize,
    pub no_room: AtomicUsize,
}

/// Forwards every frame between two ports, with offloads, until dropped.
pub struct Bridge {
    pub seen: Arc<Seen>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    pub fn new(a: Opened, b: Opened) -> Self {
        let seen = Arc::new(Seen::default());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let thread = thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || forward(a, b, &seen, &stop)
        });
        Self { seen, stop, thread: Some(thread) }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || thread::panicking(), "the bridge panicked");
    }
}

fn forward(a: Opened, b: Opened, seen: &Seen, stop: &OwnedFd) {
    let (from_a, from_b) = (a.rx.len(), b.rx.len());
    let mut queues: Vec<(Box<dyn RxQueue>, Arc<dyn TxQueue>)> = Vec::new();
    queues.extend(a.rx.into_iter().zip((0..from_a).map(|i| b.tx[i % b.tx.len()].clone())));
    queues.extend(b.rx.into_iter().zip((0..from_b).map(|i| a.tx[i % a.tx.len()].clone())));
    let mut burst = Burst::new();
    loop {
        let mut idle = true;
        for (rx, tx) in &mut queues {
            if rx.poll(&mut burst, 256 << 10) > 0 {
                idle = false;
                deliver(&burst, &**tx, seen);
                rx.release(&mut burst);
            }
        }
        if !idle || queues.iter_mut().any(|(rx, _)| rx.arm()) {
            continue;
        }
        let mut fds: Vec<_> =
            queues.iter().map(|(rx, _)| PollFd::from_borrowed_fd(rx.event_fd(), PollFlags::IN)).collect();
        fds.push(PollFd::new(stop, PollFlags::IN));
        poll(&mut fds, None).unwrap();
        if !fds.last().unwrap().revents().is_empty() {
            return;
        }
        drop(fds);
        queues.iter_mut().for_each(|(rx, _)| rx.disarm());
    }
}

fn deliver(burst: &Burst, tx: &dyn TxQueue, seen: &Seen) {
    assert!(burst.len() <= BURST);
    let ran = tx.burst(&mut |room| {
        for packet in burst.packets() {
            seen.frames.fetch_add(1, Relaxed);
            seen.large.fetch_add(packet.offload.gso.is_some().into(), Relaxed);
            seen.partial.fetch_add(matches!(packet.offload.csum, Csum::Partial { .. }).into(), Relaxed);
            let len = packet.len as usize;
            match room.reserve(len, &packet.offload) {
                Ok(to) => assert_eq!(mem::copy(burst.segments(packet), 0, to, 0, len), len),
                Err(_) => _ = seen.no_room.fetch_add(1, Relaxed),
            }
        }
    });
    assert!(ran, "one thread uses the queue");
}

/// Sends `bytes` bytes by TCP from one namespace to the other and back, and compares what arrives.
pub fn tcp_echo(client: &Net, server: &Net, address: &str, bytes: usize) {
    let address: IpAddr = address.parse().unwrap();
    let listener = server.inside(move || TcpListener::bind((address, 0)).unwrap()).join().unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        stream.write_all(&received).unwrap();
    });
    let sent: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect();
    let back = client.inside(move || {
        let mut stream = TcpStream::connect_timeout(&(address, port).into(), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        back == sent
    });
    assert!(back.join().unwrap(), "bytes changed on the way");
    echo.join().unwrap();
}
