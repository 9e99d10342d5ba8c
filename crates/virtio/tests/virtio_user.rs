//! Tests with DPDK's virtio-user driver: `dpdk-testpmd` sends packets in a circle through two of our ports.
//!
//! testpmd forwards between its two ports, and a thread here forwards between the two at the other end, so
//! every packet that `--tx-first` sends circles forever. Both sides count.

use mem::{Burst, NoRoom, Opened, copy};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use virtio::{GuestPort, Role, open};

/// Number of packets that must get through in each direction.
const ENOUGH: u64 = 20_000;
/// Only makes a hang fail instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// testpmd polls, so two instances on few cores would disturb each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A directory of its own for the sockets of one test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("virtio-user-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn port(dir: &Path, name: &str, role: Role, queues: u16) -> Opened {
    open(&GuestPort {
        name: name.to_owned(),
        socket: dir.join(name),
        role,
        queues,
        mtu: 1500,
        owner: None,
        mode: 0o600,
        offload: true,
        migrates: true,
        memory: Default::default(),
        waits: false,
    })
    .unwrap()
}

/// Packets forwarded, by direction, and packets lost.
#[derive(Default)]
struct Counts {
    forwarded: [AtomicU64; 2],
    no_room: AtomicU64,
    stop: AtomicBool,
}

/// A thread that forwards between two ports, queue by queue, and sleeps when there is nothing to do.
struct Forwarder {
    counts: Arc<Counts>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    fn start(mut ports: [Opened; 2]) -> Self {
        let counts = Arc::new(Counts::default());
        let wake = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
        let (shared, waker) = (counts.clone(), wake.clone());
        let thread = std::thread::spawn(move || {
            let mut burst = Burst::new();
            // A packet to a port that is not up yet would be lost.
            while !shared.stop.load(Ordering::Relaxed) && !ports.iter().all(is_up) {
                std::thread::yield_now();
            }
            while !shared.stop.load(Ordering::Relaxed) {
                let moved = forward_all(&mut ports, &mut burst, &shared);
                if moved == 0 {
                    sleep(&mut ports, &waker);
                }
            }
        });
        Self { counts, wake, thread: Some(thread) }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
        let done = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            done.unwrap();
        }
    }
}

fn is_up(port: &Opened) -> bool {
    usize::from(port.port.status().queues) == port.rx.len()
}

fn forward_all(ports: &mut [Opened; 2], burst: &mut Burst, counts: &Counts) -> usize {
    let mut moved = 0;
    for from in 0..2 {
        for queue in 0..ports[from].rx.len() {
            let tx = ports[1 - from].tx[queue].clone();
            let rx = &mut ports[from].rx[queue];
            let n = rx.poll(burst, 1 << 20);
            if n == 0 {
                continue;
            }
            let mut sent = 0;
            let leased = tx.burst(&mut |room| {
                for packet in burst.packets() {
                    let len = packet.len as usize;
                    match room.reserve(len, &packet.offload) {
                        Ok(to) => {
                            assert_eq!(copy(burst.segments(packet), 0, to, 0, len), len);
                            sent += 1;
                        }
                        Err(e) => {
                            assert_ne!(e, NoRoom::TooLong);
                            counts.no_room.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
            assert!(leased);
            rx.release(burst);
            counts.forwarded[from].fetch_add(sent, Ordering::Relaxed);
            moved += n;
        }
    }
    moved
}

fn sleep(ports: &mut [Opened; 2], wake: &OwnedFd) {
    let mut waiting = false;
    for rx in ports.iter_mut().flat_map(|p| &mut p.rx) {
        waiting |= rx.arm();
    }
    if !waiting {
        let mut fds: Vec<PollFd<'_>> = ports
            .iter()
            .flat_map(|p| &p.rx)
            .map(|rx| PollFd::from_borrowed_fd(rx.event_fd(), PollFlags::IN))
            .collect();
        fds.push(PollFd::new(wake, PollFlags::IN));
        poll(&mut fds, None).unwrap();
    }
    ports.iter_mut().flat_map(|p| &mut p.rx).for_each(|rx| rx.disarm());
}

/// testpmd over two virtio-user ports.
struct Testpmd {
    child: Child,
    output: JoinHandle<String>,
}

impl Testpmd {
    fn start(dir: &Path, options: &str, queues: u16, args: &[&str]) -> Self {
        let vdev = |i: u16| {
            let path = dir.join(format!("p{i}"));
            format!("net_virtio_user{i},path={},queues={queues},queue_size=256{options}", path.display())
        };
        let cores = std::thread::available_parallelism().unwrap();
        let queues = [format!("--rxq={queues}"), format!("--txq={queues}")];
        let mut child = Command::new("dpdk-testpmd")
            .args([
                "--lcores",
                &format!("(0-1)@(0-{})", cores.get() - 1),
                "--no-pci",
                "--no-huge",
                "--no-shconf",
                "-m",
                "128",
                "--no-telemetry",
            ])
            .args(["--vdev", &vdev(0), "--vdev", &vdev(1)])
            .args(["--", "--forward-mode=io", "--tx-first", "--stats-period=3600"])
            .args(["--total-num-mbufs=4096", "--nb-cores=1"])
            .args(queues)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dpdk-testpmd is needed: apt install dpdk");
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let output = std::thread::spawn(move || {
            let err = std::thread::spawn(move || read_lines(err));
            let mut text = read_lines(out);
            text.push_str(&err.join().unwrap());
            text
        });
        Self { child, output }
    }

    /// Ends testpmd; returns what it printed.
    fn stop(mut self) -> String {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        self.child.wait().unwrap();
        self.output.join().unwrap()
    }
}

fn read_lines(from: impl std::io::Read) -> String {
    let lines = BufReader::new(from).lines().map_while(Result::ok);
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// Returns the sum of the numbers that follow `label` in testpmd's accumulated statistics.
fn accumulated(output: &str, label: &str) -> u64 {
    let (_, all) = output.split_once("Accumulated forward statistics for all ports").unwrap_or_default();
    let (_, rest) =
        all.split_once(label).unwrap_or_else(|| panic!("no {label} in testpmd's output:\n{output}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn wait_for(counts: &Counts, testpmd: &mut Testpmd, packets: u64) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while counts.forwarded.iter().any(|c| c.load(Ordering::Relaxed) < packets) {
        if let Some(status) = testpmd.child.try_wait().unwrap() {
            return Err(format!("testpmd ended early: {status}"));
        }
        if Instant::now() > deadline {
            let seen = counts.forwarded.each_ref().map(|c| c.load(Ordering::Relaxed));
            return Err(format!("packets stopped at {seen:?}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn goes_round(name: &str, options: &str, queues: u16, args: &[&str]) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Dir::new(name);
    let ports = [port(&dir.0, "p0", Role::Server, queues), port(&dir.0, "p1", Role::Server, queues)];
    let devices = [ports[0].port.clone(), ports[1].port.clone()];
    let forwarder = Forwarder::start(ports);
    let mut testpmd = Testpmd::start(&dir.0, options, queues, args);
    let went = wait_for(&forwarder.counts, &mut testpmd, ENOUGH);
    // Before it stops: one port goes down before the other.
    let (status, lost) = (devices.map(|d| d.status()), forwarder.counts.no_room.load(Ordering::Relaxed));
    let output = testpmd.stop();
    if let Err(why) = went {
        panic!("{why}\n{status:#?}\n{output}");
    }
    for status in &status {
        assert!(status.up && status.fault.is_none() && status.malformed == 0, "{status:?}");
        assert_eq!(status.queues, queues);
        for feature in options.split(',').filter_map(|o| o.strip_suffix("=1")) {
            let feature = match feature {
                "packed_vq" => "packed",
                "in_order" => "in-order",
                "mrg_rxbuf" => "mrg-rxbuf",
                _ => continue,
            };
            assert!(status.features.iter().any(|f| f == feature), "{feature} not in {status:?}");
        }
    }
    let counts = &forwarder.counts;
    assert_eq!(lost, 0, "lost packets");
    assert_eq!(accumulated(&output, "RX-dropped:"), 0);
    let (sent, received) = (accumulated(&output, "TX-packets:"), accumulated(&output, "RX-packets:"));
    let forwarded: u64 = counts.forwarded.iter().map(|c| c.load(Ordering::Relaxed)).sum();
    // We forwarded what testpmd sent, and it received that, except for what was in flight when it stopped.
    let under_way = u64::from(queues) * 2 * 256;
    assert!(sent.abs_diff(forwarded) <= under_way, "sent {sent}, forwarded {forwarded}");
    assert!(received.abs_diff(forwarded) <= under_way, "received {received}, forwarded {forwarded}");
}

macro_rules! matrix {
    ($($name:ident: $options:literal, $queues:literal, $args:expr;)*) => {
        $(#[test]
        fn $name() {
            goes_round(stringify!($name), $options, $queues, &$args);
        })*
    };
}

matrix! {
    split_mergeable: ",packed_vq=0,mrg_rxbuf=1,in_order=0", 1, [];
    split_single: ",packed_vq=0,mrg_rxbuf=0,in_order=0", 1, [];
    split_in_order: ",packed_vq=0,mrg_rxbuf=0,in_order=1", 1, [];
    split_in_order_mergeable: ",packed_vq=0,mrg_rxbuf=1,in_order=1", 1, [];
    split_two_queues: ",packed_vq=0,mrg_rxbuf=1,in_order=0", 2, [];
    packed_mergeable: ",packed_vq=1,mrg_rxbuf=1,in_order=0", 1, [];
    packed_single: ",packed_vq=1,mrg_rxbuf=0,in_order=0", 1, [];
    packed_in_order: ",packed_vq=1,mrg_rxbuf=0,in_order=1", 1, [];
    packed_in_order_mergeable: ",packed_vq=1,mrg_rxbuf=1,in_order=1", 1, [];
    packed_two_queues: ",packed_vq=1,mrg_rxbuf=1,in_order=0", 2, [];
    split_many_segments: ",packed_vq=0,mrg_rxbuf=1,in_order=0", 1, ["--txpkts=64,200,300,400"];
    packed_many_segments: ",packed_vq=1,mrg_rxbuf=1,in_order=0", 1, ["--txpkts=64,200,300,400"];
}
