//! VMMs and drivers that come and go on one socket.

use super::*;
use crate::Error;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

#[test]
fn a_server_outlives_its_vmms() {
    let (dir, mut port, mut vmm) = connected("server", BASE, 1);
    for _ in 0..3 {
        works(&mut port, &mut vmm);
        drop(vmm);
        until(|| !port.port.status().up);
        assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
        assert_eq!(receive(&mut port, 0), []);
        vmm =
            Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), with(&[Features::RING_PACKED]), 1);
    }
    works(&mut port, &mut vmm);
}

#[test]
fn a_client_finds_its_vmm_again() {
    let dir = Dir::new("client");
    let config = dir.port(Role::Client, 1);
    let mut port = open(&config).unwrap();
    assert!(!port.port.status().up);
    for _ in 0..2 {
        let listener = UnixListener::bind(&config.socket).unwrap();
        let mut vmm = Vmm::new(listener.accept().unwrap().0, BASE, 1);
        works(&mut port, &mut vmm);
        std::fs::remove_file(&config.socket).unwrap();
        drop(vmm);
        until(|| !port.port.status().up);
    }
    // The VMM's file is not ours to remove.
    let _listener = UnixListener::bind(&config.socket).unwrap();
    drop(port);
    assert!(config.socket.exists());
}

#[test]
fn a_stopped_ring_goes_on_where_it_was() {
    for packed in [Features::default(), Features::RING_PACKED] {
        let (_dir, mut port, mut vmm) = connected("stop", with(&[packed]), 1);
        for _ in 0..SIZE {
            works(&mut port, &mut vmm);
            for ring in [TO_GUEST, FROM_GUEST] {
                let base = vmm.frontend.get_vring_base(ring).unwrap();
                assert!(!port.port.status().up);
                vmm.start_ring(ring, base).unwrap();
            }
        }
        works(&mut port, &mut vmm);
    }
}

#[test]
fn a_corrupted_ring_disables_its_guest_until_it_starts_again() {
    let (_dir, mut port, mut vmm) = connected("corrupt", BASE, 1);
    vmm.drivers[FROM_GUEST].corrupt(Some(SIZE + 1), None);
    assert_eq!(receive(&mut port, 0), []);
    let status = port.port.status();
    assert!(!status.up && status.fault.unwrap().contains("index"));
    assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    // The driver resets the device.
    for ring in [TO_GUEST, FROM_GUEST] {
        vmm.frontend.get_vring_base(ring).unwrap();
        vmm.drivers[ring] = Driver::new(vmm.memory.ram, ring as u64 * RING_LEN, SIZE, false, false);
    }
    for ring in [TO_GUEST, FROM_GUEST] {
        vmm.start_ring(ring, 0).unwrap();
    }
    assert_eq!(port.port.status().fault, None);
    works(&mut port, &mut vmm);
}

#[test]
fn only_a_stale_socket_file_is_replaced() {
    let dir = Dir::new("socket");
    let config = dir.port(Role::Server, 1);
    // Nobody listens there any more.
    drop(UnixListener::bind(&config.socket).unwrap());
    let port = open(&config).unwrap();
    assert_eq!(config.socket.metadata().unwrap().permissions().mode() & 0o777, 0o620);
    assert!(matches!(open(&config), Err(Error::Socket(sockets::Error::InUse(_)))));
    drop(port);
    assert!(!config.socket.exists());
    std::fs::write(&config.socket, "precious").unwrap();
    assert!(matches!(open(&config), Err(Error::Socket(sockets::Error::NotSocket(_)))));
    assert_eq!(std::fs::read(&config.socket).unwrap(), b"precious");
    let long = GuestPort { socket: dir.0.join("x".repeat(300)), ..config.clone() };
    assert!(matches!(open(&long), Err(Error::Socket(sockets::Error::Os { .. }))));
    assert!(matches!(open(&GuestPort { queues: 0, ..config }), Err(Error::Queues(0))));
}

#[test]
fn a_port_closes_in_a_process_without_free_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let dir = Dir::new("full");
    let config = dir.port(Role::Server, 1);
    let port = open(&config).unwrap();
    let name = format!("vhost-{}", config.name);
    let runs = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.into_iter().any(|thread| thread.trim() == name)
    };
    until(runs);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    // A new thread has nothing that it prepared before.
    std::thread::scope(|scope| drop(scope.spawn(|| drop(port)).join()));
    setrlimit(Resource::Nofile, before).unwrap();
    until(|| !runs());
}
