//! A program whose memory never arrives: only its own thread waits for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{App, Host, PATIENCE, spec, until};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use uverbs::Request;

/// Tells a process of this test to be the program; holds the device's socket and the file.
const PROGRAM: &str = "HCA_TEST_STUCK";

/// The one file's number.
const FILE: u64 = 2;

/// A file system with a file whose pages never arrive, until they are declared unreadable (linux/fuse.h).
struct Slow {
    device: OwnedFd,
    /// Reads that wait.
    waiting: Mutex<Vec<u64>>,
}

impl Slow {
    fn answer(&self, unique: u64, error: i32, body: &[u8]) {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(error.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(body);
        // Nobody may be there any more.
        let _ = rustix::io::write(&self.device, &bytes);
    }

    /// Makes a `struct fuse_attr`.
    fn attributes(number: u64) -> Vec<u8> {
        let (mode, size) = if number == FILE { (0o100_600_u32, 1_u64 << 20) } else { (0o040_755, 0) };
        let mut bytes = [number, size, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
        bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
        bytes
    }

    fn serve(&self) {
        let mut buffer = vec![0; 1 << 17];
        while let Ok(len) = rustix::io::read(&self.device, &mut buffer) {
            let number = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap());
            assert!(len >= 40);
            let (opcode, unique, node) = (number(4), long(8), long(16));
            match opcode {
                // LOOKUP: any name refers to the file.
                1 => {
                    let mut entry = [FILE, 0, 1000, 1000, 0].map(u64::to_ne_bytes).concat();
                    entry.extend(Self::attributes(FILE));
                    self.answer(unique, 0, &entry);
                }
                // FORGET, BATCH_FORGET, INTERRUPT.
                2 | 42 | 36 => {}
                // GETATTR.
                3 => self.answer(
                    unique,
                    0,
                    &[[1000_u64, 0].map(u64::to_ne_bytes).concat(), Self::attributes(node)].concat(),
                ),
                // OPEN, OPENDIR.
                14 | 27 => self.answer(unique, 0, &[0; 16]),
                // READ.
                15 => self.waiting.lock().unwrap().push(unique),
                // RELEASE, FLUSH, RELEASEDIR, ACCESS.
                18 | 25 | 29 | 34 => self.answer(unique, 0, &[]),
                // INIT.
                26 => {
                    let mut init = [7_u32, 31, 0, 0, 0, 4096, 1].map(u32::to_ne_bytes).concat();
                    init.resize(64, 0);
                    self.answer(unique, 0, &init);
                }
                _ => self.answer(unique, -Errno::NOSYS.raw_os_error(), &[]),
            }
        }
    }

    fn is_waited_for(&self) -> bool {
        !self.waiting.lock().unwrap().is_empty()
    }

    fn fail(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|unique| self.answer(unique, -Errno::IO.raw_os_error(), &[]));
    }
}

/// A file system at its mount point.
struct Mounted(Arc<Slow>, PathBuf);

impl Mounted {
    fn new(at: &Path) -> Option<Self> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount("slow", at, "fuse", MountFlags::empty(), Some(options.as_c_str())).ok()?;
        let slow = Arc::new(Slow { device, waiting: Mutex::default() });
        let served = slow.clone();
        std::thread::spawn(move || served.serve());
        Some(Self(slow, at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.0.fail();
        let _ = unmount(&self.1, UnmountFlags::DETACH);
    }
}

/// Plays the program: registers a page of the file.
fn program(socket: &Path, file: &Path) {
    let mut app = App::attach(socket);
    let file = std::fs::File::open(file).unwrap();
    // SAFETY: a new mapping, which nobody reads here.
    let page = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0).unwrap()
    };
    let address = page as u64;
    let asked = Request::RegMr { pd: app.pd, address, length: 8, iova: address, access: 0, pages: vec![] };
    let refused = app.ask(&asked);
    // If the device is gone meanwhile, there is no answer.
    assert!(refused.is_err());
}

fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(what()));
    is_done.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_page_that_never_comes_keeps_one_thread_waiting() {
    if let Some(places) = std::env::var_os(PROGRAM) {
        let places = std::env::split_paths(&places).collect::<Vec<_>>();
        return program(&places[0], &places[1]);
    }
    let host = Host::new();
    let at = host.dir.path().join("slow");
    std::fs::create_dir(&at).unwrap();
    let Some(mounted) = Mounted::new(&at) else {
        assert!(!rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists());
        eprintln!("left out: it takes root, and /dev/fuse");
        return;
    };
    let device = Arc::new(host.device(1));
    let mut modest = App::attach(&host.socket(1));
    let places = std::env::join_paths([host.socket(1), at.join("file")]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_page_that_never_comes_keeps_one_thread_waiting"])
        .env(PROGRAM, places)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until(|| mounted.0.is_waited_for());
    let own = device.clone();
    let mut wanted = [(std::process::id(), false), (child.id(), true)];
    wanted.sort_unstable();
    in_time(move || {
        own.review();
        own.update(hca::DeviceSpec { mtu: 4000, ..spec(1, 1) });
        // The other one may be late with its answer.
        let who = |client: hca::ClientDescription| (client.pid as u32, client.is_stuck);
        until(|| own.describe().into_iter().map(who).eq(wanted.iter().copied()));
    });
    modest.ask(&Request::QueryPort).unwrap();
    let cq = modest.cq(16, None);
    modest.ask(&Request::DestroyCq { cq: cq.handle }).unwrap();
    // The device may be closed, and the process killed.
    in_time(move || drop(Arc::into_inner(device).unwrap()));
    child.kill().unwrap();
    drop(modest);
    assert_ne!(host.fabric.taken(), (0, 0));
    mounted.0.fail();
    until(|| {
        // The other pages of it are read too.
        mounted.0.fail();
        host.fabric.taken() == (0, 0)
    });
    child.wait().unwrap();
}
