//! Hostile guests and VMMs: what it costs them, and that it costs nobody else.

use super::hand_over::end_of;
use super::requests::{asking, message};
use super::*;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::SendFlags;
use sockets::testing::{lingering, send_with};
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// Fills a ring with chains whose single descriptor continues with itself.
fn circles(vmm: &mut Vmm, ring: usize) {
    let flags = if ring == TO_GUEST { NEXT | WRITE } else { NEXT };
    for i in 0..SIZE {
        let buffer = (GPA + vmm.buffer(0), 64, ring == TO_GUEST);
        assert_eq!(vmm.drivers[ring].offer(&[buffer], false), Some(i));
        let at = ring as u64 * RING_LEN + 16 * u64::from(i) + 12;
        vmm.memory.ram.write(at, [flags, i].map(u16::to_le_bytes).as_flattened());
    }
}

#[test]
fn a_receive_ring_of_long_rubbish_is_not_walked_for_each_packet() {
    let (_dir, port, mut vmm) = connected("circles-to", with(&[Features::MRG_RXBUF]), 1);
    circles(&mut vmm, TO_GUEST);
    let send = || deliver(&port, 0, &frame(60, 0), &Offload::default());
    let walked = || port.port.status().malformed * u64::from(SIZE);
    // The credit of a ring, plus one chain.
    assert_eq!(send(), Err(NoRoom::Full));
    assert!((1024..=2048 + 64).contains(&walked()), "{} descriptors", walked());
    // From then on each packet adds only its own credit.
    for packets in 1..10 {
        let before = walked();
        assert_eq!(send(), Err(NoRoom::Full));
        assert!(walked() - before <= 64 + u64::from(SIZE), "{packets}: {} descriptors", walked() - before);
    }
    // A driver that behaves from now on is not affected.
    while vmm.drivers[TO_GUEST].used().is_some() {}
    until(|| {
        let _ = send();
        while vmm.drivers[TO_GUEST].used().is_some() {}
        walked() == u64::from(SIZE) * u64::from(SIZE)
    });
    (0..10).for_each(|i| vmm.offer(i, 2048));
    until(|| send().is_ok());
}

#[test]
fn a_transmit_ring_of_long_rubbish_is_walked_in_turns() {
    let (_dir, mut port, mut vmm) = connected("circles-from", BASE, 1);
    circles(&mut vmm, FROM_GUEST);
    let mut before = 0;
    for _ in 0..2 {
        assert_eq!(receive(&mut port, 0), []);
        let walked = port.port.status().malformed * u64::from(SIZE) - before;
        assert!((1024..=2048 + 64).contains(&walked), "{walked} descriptors");
        before += walked;
    }
}

/// Makes the device examine `count` malformed chains of `ring`, one at a time.
fn rubbish(port: &mut Opened, vmm: &mut Vmm, ring: usize, count: u32) {
    for _ in 0..count {
        vmm.drivers[ring].offer(&[(GPA, 0, ring == TO_GUEST)], false).unwrap();
        if ring == TO_GUEST {
            assert!(deliver(port, 0, &frame(60, 0), &Offload::default()).is_err());
        } else {
            assert_eq!(receive(port, 0), []);
        }
        vmm.drivers[ring].used().unwrap();
    }
}

#[test]
fn a_driver_of_nothing_but_rubbish_is_disabled() {
    for ring in [TO_GUEST, FROM_GUEST] {
        let (_dir, mut port, mut vmm) = connected("rubbish", BASE, 1);
        for _ in 0..2 {
            rubbish(&mut port, &mut vmm, ring, 1023);
            // A good one restarts the count.
            works(&mut port, &mut vmm);
            works(&mut port, &mut vmm);
        }
        rubbish(&mut port, &mut vmm, ring, 1023);
        assert_eq!(port.port.status().fault, None);
        vmm.drivers[ring].offer(&[(GPA, 0, ring == TO_GUEST)], false).unwrap();
        let _ = deliver(&port, 0, &frame(60, 0), &Offload::default());
        assert_eq!(receive(&mut port, 0), []);
        let status = port.port.status();
        assert!(!status.up && status.fault.as_ref().unwrap().contains("nothing but malformed"), "{status:?}");
    }
}

/// Runs `work` on a thread. Returns its result, or fails if it hangs.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    finished.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} hangs"))
}

#[test]
fn a_notification_that_nobody_takes_holds_nobody_up() {
    let (_dir, mut port, mut vmm) = connected("notify", BASE, 1);
    // Whoever shares an open file shares its flags. The counter is full: a blocking write would wait for a reader.
    for call in &vmm.calls {
        call.write(u64::MAX - 1).unwrap();
        // SAFETY: open as long as the event.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(call.as_raw_fd()) };
        fcntl_setfl(fd, OFlags::RDWR).unwrap();
    }
    vmm.drivers.iter().for_each(|driver| driver.want_interrupts(true, false));
    vmm.send(0, &frame(60, 0));
    vmm.offer(1, 2048);
    in_time("a worker, or the control thread,", move || {
        assert_eq!(receive(&mut port, 0).len(), 1);
        deliver(&port, 0, &frame(60, 0), &Offload::default()).unwrap();
        // It also signals whatever it is given.
        vmm.frontend.set_vring_call(TO_GUEST, &vmm.calls[TO_GUEST]).unwrap();
        // Other queues, and a thread that stops them, find the rings free.
        assert_eq!(receive(&mut port, 0).len(), 0);
        vmm.frontend.get_vring_base(FROM_GUEST).unwrap();
        drop(port);
    });
}

#[test]
fn a_descriptor_that_takes_long_to_close_is_its_guests_own_affair() {
    let (dir, mut port, mut vmm) = connected("linger", BASE, 1);
    // The thread whose close is the last one waits. If that was ours, another connection is sent.
    let _unread = std::iter::repeat_with(|| hand_over_lingering(&vmm)).take(50).flatten().next().unwrap();
    // The guest is still served, and so are queries of its state.
    works(&mut port, &mut vmm);
    in_time("closing the port", move || drop(port));
    // Another port may take its place.
    let port = open(&dir.port(Role::Server, 1)).unwrap();
    drop(Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), BASE, 1));
    drop(port);
}

#[test]
fn a_port_whose_vmm_does_not_let_it_stop_holds_up_no_replacement() {
    let (_dir, port, vmm) = connected("linger-freeze", BASE, 1);
    let _unread = std::iter::repeat_with(|| hand_over_lingering(&vmm)).take(50).flatten().next().unwrap();
    let others: Vec<_> = (0..3).map(|i| connected(&format!("freezes-{i}"), BASE, 1)).collect();
    let ports: Vec<_> = others.iter().map(|(_, port, _)| port).chain([&port]).collect();
    ports.iter().for_each(|port| port.port.begin_freeze());
    let frozen: Vec<_> = ports.iter().map(|port| port.port.freeze().unwrap().is_some()).collect();
    assert_eq!(frozen, [true, true, true, false]);
}

#[test]
fn connections_that_wait_with_descriptors_hold_up_nobody() {
    let (dir, port, _vmm) = connected("backlog", BASE, 1);
    let waiting = UnixStream::connect(dir.0.join("vm.sock")).unwrap();
    let (stream, _unread) = lingering();
    send_with(&waiting, b"x", (&stream, 1), SendFlags::empty()).unwrap();
    drop(stream);
    in_time("closing the port", move || drop(port));
}

/// Passes a socket that takes long to close to the back end, as the call event of ring 0, without waiting for a reply.
/// Returns its other end once the back end closes it, or `None` if we were the last to do so.
fn hand_over_lingering(vmm: &Vmm) -> Option<TcpStream> {
    let (stream, other) = lingering();
    end_of(vmm).send_with_fd(&message(13, 1, 0)[..], stream.as_raw_fd()).unwrap();
    let port_number = stream.local_addr().unwrap().port();
    let (done, is_ours_closed) = mpsc::channel();
    std::thread::spawn(move || {
        drop(stream);
        done.send(())
    });
    until(|| is_closing(port_number));
    is_ours_closed.recv_timeout(Duration::from_secs(2)).ok().map(|()| other)
}

/// Returns whether everybody closed the connection from this port, and its last data was not read.
fn is_closing(port: u16) -> bool {
    const FIN_WAIT1: &str = "04";
    let connections = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    connections
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .any(|fields| fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == FIN_WAIT1)
}

#[test]
fn a_header_in_parts_with_descriptors_ends_the_connection() {
    let (_dir, port, vmm) = connected("parts", BASE, 1);
    let mut stream = end_of(&vmm);
    let header = message(13, 1, 0);
    stream.send_with_fd(&header[..5], vmm.calls[0].as_raw_fd()).unwrap();
    stream.write_all(&header[5..12]).unwrap();
    until(|| !port.port.status().up);
}

/// Returns the CPU time of a port's control thread, which the name of its guest names.
fn cpu_time(guest: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_its = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == format!("vhost-{guest}"))
    };
    let nanoseconds = tasks.filter(is_its).map(|task| {
        let text = std::fs::read_to_string(task.join("schedstat")).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanoseconds.sum())
}

#[test]
fn requests_without_end_cost_a_share_of_a_cpu() {
    let dir = Dir::new("flood");
    let port = open(&GuestPort { name: "flood".to_owned(), ..dir.port(Role::Server, 1) }).unwrap();
    let stream = UnixStream::connect(dir.0.join("vm.sock")).unwrap();
    let flooding = stream.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let many = message(8, 1, 256 << 32).repeat(1000);
        while (&flooding).write_all(&many).is_ok() {}
    });
    let since = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_time("flood");
    // So much at once, and a twentieth.
    assert!(used < Duration::from_millis(550) + since.elapsed() / 10, "{used:?} of {:?}", since.elapsed());
    // The port still obeys.
    in_time("closing the port", move || drop(port));
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    flood.join().unwrap();
}

#[test]
fn a_vmm_that_ends_each_connection_is_not_called_without_end() {
    let dir = Dir::new("called");
    let listener = std::os::unix::net::UnixListener::bind(dir.0.join("vm.sock")).unwrap();
    let _port = open(&dir.port(Role::Client, 1)).unwrap();
    let since = Instant::now();
    (0..5).for_each(|_| drop(listener.accept().unwrap()));
    // Pauses of 0.1, 0.2, 0.4 and 0.8 seconds.
    assert!(since.elapsed() >= Duration::from_millis(1500), "{:?}", since.elapsed());
}

/// The lines that a subscriber writes.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_vmm_that_is_refused_again_and_again_does_not_fill_the_log() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).init();
    let dir = Dir::new("log");
    let config = GuestPort { name: "noisy".to_owned(), ..dir.port(Role::Server, 1) };
    let _port = open(&config).unwrap();
    for _ in 0..50 {
        // Connections cause log lines, too.
        let mut ask = asking(&config);
        for _ in 0..20 {
            assert_eq!(ask(20, 1), 1, "an MTU of one byte");
        }
    }
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let count = log.lines().filter(|line| line.contains("noisy")).count();
    assert!((10..=50).contains(&count), "{count} lines:\n{log}");
}
