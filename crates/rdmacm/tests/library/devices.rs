//! Two devices with a wire between them, each with its socket.

use crate::wiring;
use rdma::cm::{Client, Config, GRACE, Limits, Manager, Outgoing};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use uverbs::cm::CmRequest;
use uverbs::{Connection, Given, Refusal, Reply, Request};

pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// No packet gets there.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);

struct Device {
    manager: Manager,
    /// Channels by number: their clients, their tags, and where events go.
    channels: BTreeMap<u32, (Client, u32, Connection)>,
}

/// All devices, and the messages between them.
struct World {
    now: Duration,
    devices: [Device; 2],
    clients: u64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    let mut seed = 0_u64;
    let devices = ADDRESSES.map(|address| {
        seed += 1 << 32;
        let config = Config {
            guid: seed,
            mtu: wiring::MTU,
            max_reads: 16,
            ack_timeout: 17,
            limits: Limits::default(),
        };
        let mut next = seed;
        let random = move || {
            next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            next >> 16
        };
        let gids = vec!["fe80::1".parse().unwrap(), address.to_ipv6_mapped()];
        Device { manager: Manager::new(config, gids, Box::new(random)), channels: BTreeMap::new() }
    });
    Mutex::new(World { now: Duration::ZERO, devices, clients: 0 })
});

/// The devices' sockets.
pub static SOCKETS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap().keep();
    let paths = [0, 1].map(|which| directory.join(format!("device{which}")));
    for (which, path) in paths.iter().enumerate() {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        std::thread::spawn(move || serve(which, &socket));
    }
    paths
});

fn serve(which: usize, socket: &OwnedFd) {
    loop {
        let mut connection = Connection::new(rustix::net::accept(socket).unwrap());
        let client = {
            let mut world = WORLD.lock().unwrap();
            world.clients += 1;
            Client(world.clients)
        };
        std::thread::spawn(move || {
            while let Ok((request, given)) = connection.receive::<Request>() {
                let answer =
                    WORLD.lock().unwrap().answer(which, client, request, Given::descriptors(given).collect());
                connection.send(&answer, &[]).unwrap();
            }
            WORLD.lock().unwrap().lose(which, client);
        });
    }
}

impl World {
    fn answer(
        &mut self,
        which: usize,
        client: Client,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Reply, Refusal> {
        let Request::Cm(request) = request else { panic!("{request:?}") };
        if let CmRequest::Hello { version } = request {
            assert_eq!(version, uverbs::VERSION);
            return Ok(Reply::Done);
        }
        let device = &mut self.devices[which];
        let (tag, gone) = match request {
            CmRequest::CreateChannel { tag } => (tag, None),
            CmRequest::DestroyChannel { channel } => (0, Some(channel)),
            _ => (0, None),
        };
        let answer = wiring::answer(&mut device.manager, self.now, client, request, |_, to| to != NOWHERE);
        if let (Ok(Reply::Handle(channel)), Some(socket)) = (&answer, descriptors.into_iter().next()) {
            // A program that does not read is not waited for.
            rustix::io::ioctl_fionbio(&socket, true).unwrap();
            device.channels.insert(*channel, (client, tag, Connection::new(socket)));
        }
        gone.map(|channel| device.channels.remove(&channel));
        self.carry();
        answer
    }

    /// A program is gone.
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

    /// Carries messages until there are none, and delivers the resulting events. No listener is about to start, so
    /// requests are not made to wait for one.
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

/// Lets time pass.
pub fn pass(time: Duration) {
    let mut world = WORLD.lock().unwrap();
    world.now += time;
    let now = world.now;
    for device in &mut world.devices {
        device.manager.poll(now);
    }
    world.carry();
}
