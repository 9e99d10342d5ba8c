//! Programs take resources of the daemon's process; all of them are returned.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{App, Host, TRUSTING, gid, open, own_memory, until};
use rustix::fs::FallocateFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::{Capacity, CreateQp, Lent, QpType, Reply, Request, Uuid, VERSION};

/// One test at a time, since all share the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lines(path: &str, with: &str) -> usize {
    std::fs::read_to_string(path).unwrap().lines().filter(|line| line.contains(with)).count()
}

/// Returns the numbers of threads with this name.
fn threads(name: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap());
    // A thread may end meanwhile.
    let has_name = |id: &u32| {
        std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    ids.filter(has_name).collect()
}

/// Waits for the threads of this many devices, which take a moment to get their names.
fn devices_threads(count: usize) -> Vec<u32> {
    until(|| threads("verbs").len() == count);
    threads("verbs")
}

/// Counts descriptors, mappings of shared memory, and applications' threads.
fn taken() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, lines("/proc/self/maps", "/memfd:"), threads("verbs-client").len())
}

/// Writes random bytes over a file that the device shares, punches holes in it, and tries to truncate it.
fn spoil(file: &OwnedFd, seed: &mut u64) {
    let len = rustix::fs::fstat(file).unwrap().st_size as u64;
    let mut bytes = vec![0; len.min(1 << 16) as usize];
    for byte in &mut bytes {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (*seed >> 56) as u8;
    }
    // Some of them are sealed against it.
    let _ = rustix::io::pwrite(file, &bytes, 0);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if *seed & 1 << 40 == 0 {
        let _ = rustix::fs::fallocate(file, hole, 0, len);
    }
    let is_memory = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| !seals.is_empty());
    assert!(!is_memory || rustix::fs::ftruncate(file, 0).is_err());
}

/// Plays a program that creates one of everything, spoils the memory that it shares, and ends after this many steps.
fn hostile(host: &Host, seed: &mut u64, steps: usize) {
    let mut app = App::attach(&host.socket(TRUSTING));
    let (mut files, mut cqs) = (Vec::new(), Vec::new());
    let pd = app.pd;
    for step in 0..steps {
        let capacity = Capacity { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, ..Capacity::default() };
        let cq: u32 = cqs.last().copied().unwrap_or_default();
        let request = match step % 6 {
            0 => Request::CreateCq { entries: 64, channel: None, timestamps: false },
            1 => Request::CreateChannel,
            2 => Request::CreateSrq { pd, max_wr: 8, max_sge: 1 },
            3 | 4 => Request::CreateQp(CreateQp {
                pd,
                qp_type: QpType::Rc,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                capacity,
                sq_sig_all: true,
            }),
            _ => Request::CreateAh { pd, vector: common::vector(gid(TRUSTING)) },
        };
        if step + 1 == steps {
            // It ends before the answer comes, with more descriptors than it should have.
            let more = own_memory();
            let _ = app.connection.send(&request, &[more.as_fd().into(), more.as_fd().into()]);
            break;
        }
        let Ok((reply, more)) = app.ask(&request) else { continue };
        if let Reply::Cq { cq, .. } = reply {
            cqs.push(cq);
        }
        if let Reply::Qp { doorbell, .. } = reply {
            let _ = app.bells.ring(doorbell);
        }
        more.iter().for_each(|file| spoil(file, seed));
        files.extend(more);
        let _ = rustix::io::write(&app.wake, &1_u64.to_ne_bytes());
    }
    // Once more, while its queues are read.
    files.iter().for_each(|file| spoil(file, seed));
}

#[test]
fn everything_comes_back_whatever_a_program_did() {
    let _alone = alone();
    let host = Host::new();
    let device = host.device(TRUSTING);
    let mut seed = 1;
    hostile(&host, &mut seed, 20);
    until(|| device.describe().is_empty() && threads("verbs-client").is_empty());
    let before = taken();
    assert_eq!((before.1, before.2), (0, 0));
    for round in 0..120 {
        hostile(&host, &mut seed, round % 24);
        // Some never send a greeting, or send random bytes.
        let mut stranger = open(&host.socket(TRUSTING));
        if round % 3 == 0 {
            let hello = Request::Hello { version: VERSION, token: seed, program: Uuid::default() };
            let file = own_memory();
            let _ = stranger.send(&hello, &[file.as_fd(), file.as_fd(), file.as_fd()].map(Lent::from));
        } else if round % 3 == 1 {
            let _ = stranger.send(&seed, &[]);
        }
    }
    // Some of the descriptors of before may still have been on their way to be closed.
    until(|| {
        let now = taken();
        now.0 <= before.0 && (now.1, now.2) == (0, 0) && host.fabric.taken() == (0, 0)
    });
}

#[test]
fn without_descriptors_nobody_is_let_in_and_nobody_spins() {
    let _alone = alone();
    let host = Host::new();
    let _device = host.device(1);
    let mut app = App::attach(&host.socket(1));
    let thread = devices_threads(1)[0];
    let mut stat = std::fs::File::open(format!("/proc/self/task/{thread}/stat")).unwrap();
    let late =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    let address = rustix::net::SocketAddrUnix::new(host.socket(1)).unwrap();
    let memory = own_memory();
    let before = getrlimit(Resource::Nofile);
    let few = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 20;
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..before }).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| memory.try_clone().ok()).collect();
    assert!(!all.is_empty());
    rustix::net::connect(&late, &address).unwrap();
    // A thread that spins never sleeps; one that does not may wait for a CPU quite often.
    let mut asleep = 0;
    until(|| {
        // Others are served.
        app.ask(&Request::QueryPort).unwrap();
        let mut text = String::new();
        stat.rewind().unwrap();
        stat.read_to_string(&mut text).unwrap();
        asleep += usize::from(text.rsplit_once(") ").unwrap().1.starts_with('S'));
        asleep > 150
    });
    drop(all);
    setrlimit(Resource::Nofile, before).unwrap();
    let mut late = uverbs::Connection::new(late);
    late.send(
        &Request::Hello { version: VERSION, token: 0, program: Uuid::default() },
        &[memory.as_fd().into()],
    )
    .unwrap();
    let answer = late.receive::<Result<Reply, uverbs::Refusal>>().unwrap().0;
    assert!(matches!(answer, Ok(Reply::Device(_))), "{answer:?}");
}

/// Returns the nice value of a thread (proc(5)); `None` if it has ended meanwhile.
fn nice(thread: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    Some(stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse().unwrap())
}

#[test]
fn the_threads_of_programs_weigh_as_much_as_the_cpus_together() {
    let _alone = alone();
    let host = Host::new();
    let _devices = [host.device(1), host.device(2)];
    let base = nice(devices_threads(2)[0]).unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    // So many of one device that together they weigh four times as much as the CPUs; the other device's only thread is
    // not alone.
    let mut apps: Vec<_> = (0..2 * cpus).map(|_| App::attach(&host.socket(1))).collect();
    let mut other = App::attach(&host.socket(2));
    let told = |apps: &mut [App]| apps.iter_mut().for_each(|app| _ = app.ask(&Request::QueryPort).unwrap());
    let values = || {
        let mut values: Vec<_> =
            threads("verbs-client").into_iter().filter_map(nice).map(|nice| nice - base).collect();
        values.sort_unstable();
        values
    };
    // Nobody weighs less than one with the nice value 19, at which this process may be itself.
    let least = 19 - base;
    let mut wanted = vec![least.min(6); 2 * cpus];
    wanted.insert(0, if cpus == 1 { least.min(3) } else { 0 });
    until(|| {
        told(&mut apps);
        other.ask(&Request::QueryPort).unwrap();
        values() == wanted
    });
    assert!(threads("verbs").into_iter().all(|thread| nice(thread) == Some(base)), "workers' kind");
    // If permitted, a thread that is alone again regains its weight.
    let may = rustix::process::geteuid().is_root();
    apps.truncate(1);
    drop(other);
    until(|| {
        told(&mut apps);
        let values = values();
        values.len() == 1 && (!may || values == [0])
    });
}
