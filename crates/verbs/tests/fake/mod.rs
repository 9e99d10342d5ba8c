//! A device that does the least which programs can run with: messages are moved within this machine, between whoever is
//! connected. Nothing is checked, and no peer is anywhere else.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "of tests and an example: it fails by panicking, each uses parts"
)]

mod control;
mod work;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, shutdown,
    socket_with,
};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use uverbs::work::Shape;
use uverbs::{
    AddressVector, Capacity, CompletionSink, Connection, Doorbells, Memory, QpAttributes, QpType, Refusal,
    Request, WorkSource,
};

/// What one program has.
pub struct Client {
    pub control: OwnedFd,
    /// Its `/proc/self/mem`.
    pub memory: OwnedFd,
    pub bells: Doorbells,
    pub events: OwnedFd,
    pub channels: HashMap<u32, OwnedFd>,
}

pub struct Mr {
    pub address: u64,
    pub iova: u64,
    pub client: u32,
}

pub struct Cq {
    pub sink: CompletionSink,
    pub channel: Option<u32>,
    pub client: u32,
}

pub struct Srq {
    pub source: WorkSource,
    pub limit: u32,
    pub client: u32,
}

pub struct Qp {
    pub client: u32,
    pub qp_type: QpType,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub all_signaled: bool,
    pub capacity: Capacity,
    pub attributes: QpAttributes,
    pub send: WorkSource,
    pub receive: Option<WorkSource>,
    /// Keeps what both are in.
    pub memory: Arc<Memory>,
    /// A send that waits for its receive.
    pub waiting: Option<work::Send>,
}

#[derive(Default)]
pub struct Device {
    pub next: u32,
    pub clients: HashMap<u32, Client>,
    pub pds: HashMap<u32, u32>,
    pub mrs: HashMap<u32, Mr>,
    pub cqs: HashMap<u32, Cq>,
    pub srqs: HashMap<u32, Srq>,
    pub qps: HashMap<u32, Qp>,
    pub ahs: HashMap<u32, AddressVector>,
    /// What was asked for, for tests to look at.
    pub log: Vec<Request>,
    /// Doorbells that were heard.
    pub heard: Vec<u32>,
    /// What the next request that is not the first is answered with.
    pub refusal: Option<Refusal>,
}

/// The device, running.
#[derive(Clone)]
pub struct Fake {
    device: Arc<Mutex<Device>>,
    wake: Arc<OwnedFd>,
}

/// A queue pair's doorbell.
pub const fn doorbell(qpn: u32) -> u32 {
    qpn % control::DOORBELLS
}

impl Fake {
    /// Listens at this path.
    pub fn start(path: &Path) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 16).unwrap();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let fake = Self { device: Arc::default(), wake };
        let (accepting, working) = (fake.clone(), fake.clone());
        std::thread::spawn(move || accepting.accept(&socket));
        std::thread::spawn(move || working.work());
        fake
    }

    pub fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    /// Goes, as a daemon that is killed.
    pub fn die(&self) {
        let mut device = self.device();
        for client in device.clients.values() {
            shutdown(&client.control, Shutdown::Both).unwrap();
        }
        device.clients.clear();
    }

    fn accept(&self, socket: &OwnedFd) {
        loop {
            let control = accept_with(socket, SocketFlags::CLOEXEC).unwrap();
            let same = control.try_clone().unwrap();
            let fake = self.clone();
            std::thread::spawn(move || {
                let mut connection = Connection::new(control);
                let mut client = None;
                while let Ok((request, descriptors)) = connection.receive::<Request>() {
                    let mut device = fake.device();
                    let (reply, descriptors) =
                        device.answer(&mut client, &same, &fake.wake, request, descriptors);
                    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    let _ = connection.send(&reply, &borrowed);
                }
                fake.device().forget(client);
            });
        }
    }

    fn work(&self) {
        loop {
            let mut device = self.device();
            // SAFETY: no arguments.
            let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap();
            device.clients.values().for_each(|client| client.bells.set_cpu(cpu));
            let is_busy = device.work();
            let sleeps = !is_busy && {
                device.clients.values().for_each(|client| client.bells.set_asleep(true));
                !device.work()
            };
            drop(device);
            if sleeps {
                poll(&mut [PollFd::new(&*self.wake, PollFlags::IN)], None).unwrap();
                rustix::io::read(&*self.wake, &mut [0; 8]).unwrap();
            }
            self.device().clients.values().for_each(|client| client.bells.set_asleep(false));
        }
    }
}

/// Where the queues of a queue pair are.
pub fn shapes(capacity: &Capacity, has_srq: bool) -> (Shape, Option<Shape>) {
    let send = Shape::new(0, capacity.max_send_wr, capacity.max_send_sge, capacity.max_inline_data);
    let after = u32::try_from(send.end()).unwrap();
    let receive = (!has_srq).then(|| Shape::new(after, capacity.max_recv_wr, capacity.max_recv_sge, 0));
    (send, receive)
}
