//! An application whose thread can't be started leaves no trace.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{App, Host, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uverbs::{Refusal, Reply};

/// Returns whether all other threads of this process sleep.
fn others_sleep() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap).all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        task.file_name() == own.as_str() || stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    })
}

#[test]
fn a_place_is_free_again_where_a_thread_can_not_be_started() {
    let host = Host::new();
    let device = host.device(1);
    // A thread that starts takes much address space for its heap, and returns most of it at once.
    while !others_sleep() {
        std::thread::yield_now();
    }
    let before = getrlimit(Resource::As);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kilobytes: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    // Less than a stack remains.
    let all = (kilobytes + 1024) << 10;
    setrlimit(Resource::As, Rlimit { current: Some(all), ..before }).unwrap();
    for _ in 0..300 {
        let mut connection = open(&host.socket(1));
        assert!(connection.receive::<Result<Reply, Refusal>>().is_err(), "nobody serves it");
    }
    assert_eq!(host.fabric.taken(), (0, 0));
    setrlimit(Resource::As, before).unwrap();
    let _app = App::attach(&host.socket(1));
    assert_eq!(device.describe().len(), 1);
}
