//! Two devices with a wire between them: one with a local socket, and one as programs in a virtual machine have it,
//! with a window and streams.

use crate::wiring;
use rdma::cm::{Client, Config, GRACE, Limits, Manager, Outgoing};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use sockets::Untrusted;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use uverbs::cm::CmRequest;
use uverbs::{
    Connection, Endpoint, Given, Lent, Nonce, Opening, PAGE, Refusal, Reply, Request, Stream, Ticket, Uuid,
    Welcome, WindowHeader, WindowKind, window,
};

pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// An address that no packet reaches.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);

struct Device {
    manager: Manager,
    /// Channels whose streams have not come, by ticket: client and tag.
    awaited: BTreeMap<Ticket, (Client, u32)>,
    /// Channels by number: client, tag, and the connection for events.
    channels: BTreeMap<u32, (Client, u32, Connection)>,
}

/// All devices, and the messages between them.
struct World {
    now: Duration,
    devices: [Device; 2],
    clients: u64,
    /// The sockets of programs' connections, with the number of their device.
    sockets: Vec<(usize, OwnedFd)>,
    are_down: [bool; 2],
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    let devices = [0, 1].map(device);
    let (sockets, are_down) = (Vec::new(), [false; 2]);
    Mutex::new(World { now: Duration::ZERO, devices, clients: 0, sockets, are_down })
});

fn device(which: usize) -> Device {
    let seed = (which as u64 + 1) << 32;
    let config =
        Config { guid: seed, mtu: wiring::MTU, max_reads: 16, ack_timeout: 17, limits: Limits::default() };
    let mut next = seed;
    let random = move || {
        next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        next >> 16
    };
    let gids = vec!["fe80::1".parse().unwrap(), ADDRESSES[which].to_ipv6_mapped()];
    Device {
        manager: Manager::new(config, gids, Box::new(random)),
        awaited: BTreeMap::new(),
        channels: BTreeMap::new(),
    }
}

/// Ends the daemon of a device.
#[allow(dead_code, reason = "for programs whose devices end")]
pub fn end(which: usize) {
    let mut world = WORLD.lock().unwrap();
    world.are_down[which] = true;
    world.devices[which] = device(which);
    for (_, socket) in world.sockets.extract_if(.., |(of, _)| *of == which) {
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
    }
}

/// Starts the daemon of a device again.
#[allow(dead_code, reason = "for programs whose devices end")]
pub fn start(which: usize) {
    WORLD.lock().unwrap().are_down[which] = false;
}

/// A secret in the window, which a program must know to use the device.
const NONCE: Nonce = [7; 32];
/// The secret's offset in the window.
const CHALLENGE: u64 = PAGE;

pub static DEVICES: LazyLock<[Endpoint; 2]> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap().keep();
    let paths = [0, 1].map(|which| directory.join(format!("device{which}")));
    for (which, path) in paths.iter().enumerate() {
        let (flags, kinds) = (SocketFlags::CLOEXEC, [SocketType::SEQPACKET, SocketType::STREAM]);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kinds[which], flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        std::thread::spawn(move || {
            loop {
                let socket = rustix::net::accept(&socket).unwrap();
                {
                    let mut world = WORLD.lock().unwrap();
                    if world.are_down[which] {
                        continue;
                    }
                    world.sockets.push((which, socket.try_clone().unwrap()));
                }
                let socket = Arc::new(Untrusted::new(socket, &Arc::default()).unwrap());
                std::thread::spawn(move || {
                    if which == 0 { serve(0, Connection::serving(socket)) } else { open(socket) }
                });
            }
        });
    }
    let own = directory.join("window");
    let len = 4 * PAGE;
    let header = WindowHeader { kind: WindowKind::Own, uuid: Uuid([1; 16]), len, port: 1, name: "vm".into() };
    let file = std::fs::File::create(&own).unwrap();
    file.set_len(window::DATA + len).unwrap();
    file.write_all_at(&header.to_bytes(), window::DATA).unwrap();
    file.write_all_at(&NONCE, window::DATA + CHALLENGE).unwrap();
    let [local, socket] = paths;
    [Endpoint::Socket(local), Endpoint::Files { own, common: None, socket }]
});

/// Serves a stream of the second device.
fn open(socket: Arc<Untrusted>) {
    let mut stream = Connection::Stream(Stream::serving(socket));
    let told = |welcome| Ok::<_, Refusal>(welcome);
    match stream.receive::<Opening>().unwrap().0 {
        Opening::Program { version, window, claim } => {
            assert_eq!((version, window), (uverbs::VERSION, Uuid([1; 16])));
            assert_eq!(claim.pid, std::process::id() as i32);
            stream.send(&told(Welcome::Challenge { offset: CHALLENGE }), &[]).unwrap();
            assert_eq!(stream.receive::<Opening>().unwrap().0, Opening::Proof { nonce: NONCE });
            stream.send(&told(Welcome::Accepted { common: None }), &[]).unwrap();
            serve(1, stream);
        }
        Opening::Ticket { ticket } => {
            let mut world = WORLD.lock().unwrap();
            let (client, tag) = world.devices[1].awaited.remove(&ticket).unwrap();
            stream.send(&told(Welcome::Accepted { common: None }), &[]).unwrap();
            world.devices[1].channels.insert(ticket.0 as u32, (client, tag, stream));
        }
        proof => panic!("{proof:?}"),
    }
}

fn serve(which: usize, mut connection: Connection) {
    let client = {
        let mut world = WORLD.lock().unwrap();
        world.clients += 1;
        Client(world.clients)
    };
    while let Ok((request, given)) = connection.receive::<Request>() {
        let descriptors = Given::descriptors(given).collect();
        let (answer, ticket) = WORLD.lock().unwrap().answer(which, client, request, descriptors);
        let along = ticket.map(Lent::Stream);
        if connection.send(&answer, along.as_slice()).is_err() {
            break;
        }
    }
    WORLD.lock().unwrap().lose(which, client);
}

impl World {
    fn answer(
        &mut self,
        which: usize,
        client: Client,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> (Result<Reply, Refusal>, Option<Ticket>) {
        let Request::Cm(request) = request else { panic!("{request:?}") };
        if let CmRequest::Hello { version } = request {
            assert_eq!(version, uverbs::VERSION);
            return (Ok(Reply::Done), None);
        }
        let device = &mut self.devices[which];
        let (tag, gone) = match request {
            CmRequest::CreateChannel { tag } => (Some(tag), None),
            CmRequest::DestroyChannel { channel } => (None, Some(channel)),
            _ => (None, None),
        };
        assert!(descriptors.is_empty() || which == 0);
        let answer = wiring::answer(&mut device.manager, self.now, client, request, |_, to| to != NOWHERE);
        let mut ticket = None;
        if let (Ok(Reply::Handle(channel)), Some(tag)) = (&answer, tag) {
            if let Some(socket) = descriptors.into_iter().next() {
                // Nobody waits for a program that does not read.
                rustix::io::ioctl_fionbio(&socket, true).unwrap();
                device.channels.insert(*channel, (client, tag, Connection::new(socket)));
            } else {
                let its = *ticket.insert(Ticket((*channel).into()));
                device.awaited.insert(its, (client, tag));
            }
        }
        gone.map(|channel| device.channels.remove(&channel));
        self.carry();
        (answer, ticket)
    }

    /// Removes a program that is gone.
    fn lose(&mut self, which: usize, client: Client) {
        let device = &mut self.devices[which];
        device.manager.remove_client(self.now, client);
        device.channels.retain(|_, (owner, ..)| *owner != client);
        self.carry();
    }

    fn sent(&mut self) -> Vec<Outgoing> {
        let sent =
            |device: &mut Device| std::iter::from_fn(|| device.manager.next_datagram()).collect::<Vec<_>>();
        self.devices.iter_mut().flat_map(sent).collect()
    }

    /// Carries messages until there are none, and delivers the resulting events. Requests need not wait for a listener,
    /// because none is about to start.
    fn carry(&mut self) {
        loop {
            let mut outgoing = self.sent();
            if outgoing.is_empty() {
                for device in &mut self.devices {
                    device.manager.poll(self.now + GRACE);
                }
                outgoing = self.sent();
            }
            if outgoing.is_empty() {
                break;
            }
            for Outgoing { source, destination, mad } in outgoing {
                for (device, address) in self.devices.iter_mut().zip(ADDRESSES) {
                    if destination == address {
                        device.manager.receive(self.now, source, destination, &mad);
                    }
                }
            }
        }
        for device in &mut self.devices {
            device.manager.deliver(|event| {
                let (_, tag, socket) = device.channels.get_mut(&event.channel).unwrap();
                socket.send(&wiring::told(event, *tag), &[]).is_ok()
            });
        }
    }
}

pub fn pass(time: Duration) {
    let mut world = WORLD.lock().unwrap();
    world.now += time;
    let now = world.now;
    for device in &mut world.devices {
        device.manager.poll(now);
    }
    world.carry();
}
