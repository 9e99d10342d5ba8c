//! A daemon that can't see its programs' processes, because they are not in its process namespace.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{App, Host, SIGNALED, gid, next, segment};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use uverbs::qp::access;
use uverbs::{QpType, Request, WorkRequest};

/// Tells a process of this test to be the daemon.
const DAEMON: &str = "HCA_TEST_DAEMON";
const SEND: u8 = 2;

/// Opens two trusting devices, and finally reports the process numbers of their programs.
fn be_the_daemon() {
    let host = Host::new();
    let devices = [common::TRUSTING, common::TRUSTING + 1].map(|number| host.device(number));
    // With one CPU, the harness has begun a line.
    println!("\nat {}", host.socket(0).parent().unwrap().display());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let pids: Vec<_> = devices.iter().flat_map(hca::Device::describe).map(|client| client.pid).collect();
    println!("pids {pids:?}");
}

#[test]
#[allow(clippy::zombie_processes, reason = "the test ends with the process, and fails where it does not")]
fn a_program_that_has_no_number_here_is_served() {
    if std::env::var_os(DAEMON).is_some() {
        return be_the_daemon();
    }
    let mut daemon = Command::new("unshare")
        .args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_program_that_has_no_number_here_is_served", "--nocapture"])
        .env(DAEMON, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
    let at = lines.find_map(|line| Some(line.strip_prefix("at ")?.to_owned()));
    if at.is_none() {
        let status = daemon.wait();
        panic!("no process namespaces here: unshare ended with {status:?}");
    }
    let at = at.unwrap();
    let numbers = [common::TRUSTING, common::TRUSTING + 1];
    let [mut a, mut b] = numbers.map(|number| App::attach(&Path::new(&at).join(format!("vm{number}"))));
    let (mut ca, mut cb) = (a.cq(8, None), b.cq(8, None));
    let (mut qa, mut qb) = (a.qp(QpType::Rc, &ca, None), b.qp(QpType::Rc, &cb, None));
    a.connect(&qa, QpType::Rc, gid(numbers[1]), qb.qpn);
    b.connect(&qb, QpType::Rc, gid(numbers[0]), qa.qpn);
    let (from, to): (Box<[u8]>, Box<[u8]>) = (vec![7; 100].into(), vec![0; 100].into());
    let (ka, kb) = (a.register(&from, access::ALL), b.register(&to, access::ALL));
    b.post_receive(&mut qb, 1, &[segment(&to, kb)]);
    let send = WorkRequest { id: 2, opcode: SEND, flags: SIGNALED, ..WorkRequest::default() };
    a.post_send(&mut qa, send, &[segment(&from, ka)]);
    assert_eq!((next(&mut ca).status, next(&mut cb).status), (0, 0));
    assert!(from == to);
    // Memory is shared all the same; only its connection tells whether its holder ended.
    assert!(a.ask(&Request::Direct { qpn: qa.qpn }).is_ok());
    daemon.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.find(|line| line.starts_with("pids")).unwrap(), "pids [0, 0]");
    assert!(daemon.wait().unwrap().success());
}
