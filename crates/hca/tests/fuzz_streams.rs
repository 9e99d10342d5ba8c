//! Hostile users of a virtual machine at its device's streams: whatever they say, in whatever order, and whatever they
//! write into the window, the device serves others, and recovers everything once they are gone. What one round leaves
//! behind (streams, tickets, parts, numbers of keys) the next one has.

use crate::common;
use crate::common::guests::{Guest, TestWindow, dial};
use crate::common::{App, Host, TRUSTING, until};
use rustix::net::SendFlags;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use uverbs::cm::CmRequest;
use uverbs::window::{DATA, FIRST};
use uverbs::{
    Backing, Capacity, Claim, Connection, CreateQp, Extent, Given, Nonce, Opening, Part, QpType, Refusal,
    Reply, Request, Stream, Suspect, Ticket, Uuid, VERSION, Welcome, WindowKind,
};

/// A step: its kind, and numbers for it.
type Step = (u8, u8, u16, u64);

/// Number of our threads that panicked.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// The machine, a well-behaved program in it, and what hostile ones got so far.
struct World {
    host: Host,
    guest: Guest,
    common: TestWindow,
    modest: App,
    /// Pages of it, which it registers again and again.
    its: Extent,
    parts: Vec<Part>,
    tickets: Vec<Ticket>,
    handles: Vec<u32>,
}

fn world() -> &'static Mutex<World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
        let host = Host::new();
        let common = TestWindow::new(WindowKind::Common, 99);
        let guest = host.guest(TRUSTING, Some(&common));
        let mut modest = App::join_as(&guest.endpoint, 9).unwrap();
        let its = modest.buffer(8192, 0).extents[0];
        let (parts, tickets, handles) = Default::default();
        Mutex::new(World { host, guest, common, modest, its, parts, tickets, handles })
    })
}

/// Makes the greeting of one of a few programs; some of them share pages with others.
fn hello(a: u16, c: u64) -> Request {
    Request::Hello { version: VERSION, token: c, program: Uuid([(a % 4) as u8; 16]) }
}

/// A stream of a hostile user: what it is, as far as the user knows.
enum Line {
    New(OwnedFd),
    Asked(Connection, u64),
    Open(Connection),
}

fn pick<T: Copy>(of: &[T], number: u64) -> Option<T> {
    of.get(number as usize % of.len().max(1)).copied()
}

impl World {
    fn claim(&self) -> Claim {
        // Not another boot than that of the modest program, which would be disconnected by it.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let boot = boot.trim().replace('-', "").parse().unwrap();
        Claim { pid: -1, uid: 0, program: "\u{1b}[2J".into(), boot, ..Claim::default() }
    }

    fn part(&self, a: u16, c: u64) -> Part {
        let window = if a.is_multiple_of(2) { WindowKind::Common } else { WindowKind::Own };
        match a % 5 {
            0 => Part { window, offset: c, len: u64::from(a) },
            1 => Part { window, offset: c << 12, len: c },
            _ => {
                let part = pick(&self.parts, c).unwrap_or(Part { window, offset: FIRST, len: 4096 });
                Part { offset: part.offset + u64::from(a % 3) * 4096, ..part }
            }
        }
    }

    fn request(&self, which: u8, a: u16, c: u64) -> Request {
        let handle = pick(&self.handles, c).unwrap_or(a.into());
        match which % 16 {
            0 => hello(a, c),
            1 => Request::Cm(CmRequest::Hello { version: VERSION }),
            2 => Request::Cm(CmRequest::CreateChannel { tag: a.into() }),
            3 => Request::AllocPd,
            4 if a.is_multiple_of(3) => {
                let window = if a.is_multiple_of(2) { WindowKind::Common } else { WindowKind::Own };
                Request::Ended {
                    gone: vec![Suspect { window, number: a.into(), pid: handle as i32, started: c }],
                }
            }
            4 | 5 => Request::AllocPages { len: if a.is_multiple_of(7) { c } else { u64::from(a) << 6 } },
            6 => Request::FreePages { part: self.part(a, c) },
            7..=9 => {
                let address = if a.is_multiple_of(3) { c } else { c & !4095 };
                let extent = |at: u64| {
                    let part = self.part(a, c.wrapping_add(at));
                    Extent {
                        address: address.wrapping_add(at * 4096),
                        len: part.len,
                        backing: Backing::Window(part),
                    }
                };
                let pages = (0..u64::from(a % 4)).map(extent).collect();
                let access = u32::from(which) % 16;
                let (pd, length, iova) = (handle, u64::from(a), c);
                if which % 16 == 9 {
                    Request::RegStandIn { pd, address, length, iova, access, pages }
                } else {
                    Request::RegMr { pd, address, length, iova, access, pages }
                }
            }
            12 if a.is_multiple_of(2) => Request::ServeCopies,
            10 => Request::DeregMr { mr: handle },
            11 => Request::ReregMr { mr: handle, pd: None, range: Some((c, a.into())), access: None },
            12 => Request::CreateChannel,
            13 => Request::CreateCq { entries: u32::from(a) + 1, channel: None, timestamps: false },
            14 => Request::CreateQp(CreateQp {
                pd: handle,
                qp_type: QpType::Rc,
                send_cq: handle,
                recv_cq: handle,
                srq: None,
                capacity: Capacity { max_send_wr: u32::from(a), ..Capacity::default() },
                sq_sig_all: false,
            }),
            _ => Request::Direct { qpn: handle },
        }
    }

    /// Remembers what came.
    fn note(&mut self, reply: &Reply, given: &[Given]) {
        match *reply {
            Reply::Handle(handle)
            | Reply::Cq { cq: handle, .. }
            | Reply::Mr { mr: handle, .. }
            | Reply::Qp { qpn: handle, .. } => self.handles.push(handle),
            _ => {}
        }
        for given in given {
            match given {
                Given::Part(part) => self.parts.push(*part),
                Given::Stream(ticket) => self.tickets.push(*ticket),
                Given::Window(..) | Given::Descriptor(_) => panic!("a descriptor got into a virtual machine"),
            }
        }
        let keep = |len: usize| len.saturating_sub(64);
        self.parts.drain(..keep(self.parts.len()));
        self.tickets.drain(..keep(self.tickets.len()));
        self.handles.drain(..keep(self.handles.len()));
    }

    /// Writes into the windows, where the hostile users' own memory is or may be.
    fn spoil(&self, a: u16, c: u64) {
        let Some(part) = pick(&self.parts, c) else { return };
        let window = if part.window == WindowKind::Own { &self.guest.own } else { &self.common };
        let file = std::fs::File::from(window.file.try_clone().unwrap());
        let bytes = c.to_ne_bytes().repeat(usize::from(a % 512));
        // The modest program's are where it has them.
        let at = DATA + part.offset;
        let len = bytes.len().min(part.len as usize);
        let _ = file.write_all_at(&bytes[..len], at);
    }

    fn step(&mut self, lines: &mut Vec<Line>, (kind, which, a, c): Step) {
        let at = a as usize % lines.len().max(1);
        match kind % 12 {
            0 if lines.len() < 16 => lines.push(Line::New(dial(&self.host.streams(TRUSTING)))),
            0 | 1 if !lines.is_empty() => drop(lines.swap_remove(at)),
            2 if !lines.is_empty() => {
                let bytes = c.to_ne_bytes().repeat(usize::from(which % 9));
                let socket = match &lines[at] {
                    Line::New(socket) => rustix::io::dup(socket),
                    Line::Asked(connection, _) | Line::Open(connection) => rustix::io::dup(connection),
                };
                let _ = rustix::net::send(socket.unwrap(), &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                // Later answers on this stream would be out of step.
                drop(lines.swap_remove(at));
            }
            3 => self.spoil(a, c),
            _ if lines.is_empty() => lines.push(Line::New(dial(&self.host.streams(TRUSTING)))),
            _ => {
                let line = lines.swap_remove(at);
                lines.extend(self.talk(line, which, a, c));
            }
        }
    }

    /// Says the next thing on a stream. Returns it, if it is still good.
    fn talk(&mut self, line: Line, which: u8, a: u16, c: u64) -> Option<Line> {
        match line {
            Line::New(socket) => {
                let mut connection = Connection::Stream(Stream::new(socket));
                let window = Uuid([if which.is_multiple_of(8) { a as u8 } else { TRUSTING }; 16]);
                let opening = match which % 4 {
                    0 => Opening::Ticket { ticket: pick(&self.tickets, c).unwrap_or(Ticket(c)) },
                    1 => Opening::Sockets { version: VERSION, window, claim: self.claim() },
                    _ => Opening::Program { version: VERSION, window, claim: self.claim() },
                };
                connection.send(&opening, &[]).ok()?;
                match connection.receive::<Result<Welcome, Refusal>>().ok()?.0.ok()? {
                    Welcome::Challenge { offset } => Some(Line::Asked(connection, offset)),
                    Welcome::Accepted { .. } => Some(Line::Open(connection)),
                }
            }
            Line::Asked(mut connection, offset) => {
                let mut nonce = Nonce::default();
                if !which.is_multiple_of(8) {
                    let file = std::fs::File::from(self.guest.own.file.try_clone().unwrap());
                    file.read_exact_at(&mut nonce, DATA + offset).unwrap();
                }
                connection.send(&Opening::Proof { nonce }, &[]).ok()?;
                connection.receive::<Result<Welcome, Refusal>>().ok()?.0.ok()?;
                // Most greet.
                if !which.is_multiple_of(4) {
                    connection.send(&hello(a, c), &[]).ok()?;
                    let (reply, given) = connection.receive::<Result<Reply, Refusal>>().ok()?;
                    self.note(&reply.ok()?, &given);
                }
                Some(Line::Open(connection))
            }
            Line::Open(mut connection) => {
                connection.send(&self.request(which, a, c), &[]).ok()?;
                // A stream that is no connection any more answers nothing.
                let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut wanted = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
                if rustix::event::poll(&mut wanted, Some(&limit)) != Ok(1) {
                    return None;
                }
                let (reply, given) = connection.receive::<Result<Reply, Refusal>>().ok()?;
                if let Ok(reply) = reply {
                    self.note(&reply, &given);
                }
                Some(Line::Open(connection))
            }
        }
    }
}

#[test]
fn hostile_streams() {
    bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
        let mut world = world().lock().unwrap_or_else(PoisonError::into_inner);
        let modest = |world: &World| {
            let used = |window: &TestWindow| window.window.describe().used;
            used(&world.common) + used(&world.guest.own)
        };
        let before = world.common.window.describe().programs.len();
        let mut lines = Vec::new();
        for step in steps {
            world.step(&mut lines, *step);
        }
        drop(lines);
        until(|| {
            world.guest.device.describe().len() == 1 && world.guest.device.describe_connections().is_empty()
        });
        until(|| world.common.window.describe().programs.len() == before);
        let (used, its) = (modest(&world), world.its);
        // Nobody took its pages away.
        let mr = world.modest.register_at((its.address, its.len), &[its], 0).unwrap();
        world.modest.ask(&Request::DeregMr { mr }).unwrap();
        let pages = world.modest.pages(4096).unwrap();
        let part = common::guests::part_of(&pages[0]);
        world.modest.ask(&Request::FreePages { part }).unwrap();
        assert_eq!((modest(&world), PANICS.load(Ordering::Relaxed)), (used, 0));
        until(|| world.host.fabric.taken() == (19, 8));
    });
}
