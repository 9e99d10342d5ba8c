//! Programs of virtual machines, whose agents say what they offer.

use super::{Everything, old_offer, until};
use crate::{Agent, End, Frame, GuestSpec, Job, Key, Limits, Offered, Piece, Service, Ways, Window};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sockets::Untrusted;
use sockring::{BYTES, Direction, Link, Message, Side};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use uverbs::Stream;

const OFFSET: u64 = 266_240;

/// Counts what happened in a window.
#[derive(Default)]
struct Seen {
    taken: AtomicU32,
    freed: AtomicU32,
    left: AtomicU32,
    lost: AtomicU32,
    at: Mutex<Option<usize>>,
    is_full: AtomicBool,
}

impl Seen {
    fn counts(&self) -> [u32; 4] {
        [&self.taken, &self.freed, &self.left, &self.lost].map(|count| count.load(Ordering::SeqCst))
    }
}

fn null() -> std::fs::File {
    std::fs::File::open("/dev/null").unwrap()
}

/// A window with its thread.
struct Fake(u8, mpsc::Sender<Job>, Arc<Seen>, std::fs::File);

impl Fake {
    fn new(id: u8) -> (Arc<Self>, Arc<Seen>) {
        let (jobs, all) = mpsc::channel::<Job>();
        std::thread::spawn(move || all.into_iter().for_each(|job| job()));
        let seen = Arc::new(Seen::default());
        (Arc::new(Self(id, jobs, seen.clone(), null())), seen)
    }
}

impl Window for Fake {
    fn id(&self) -> [u8; 16] {
        [self.0; 16]
    }

    fn lend(&self, _: &str, _: u32, _: i32) -> Option<Arc<dyn Window>> {
        None
    }

    fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.3.as_fd(), 0)
    }

    fn later(&self, job: Job) {
        _ = self.1.send(job);
    }

    fn share(&self) -> bool {
        !self.2.is_full.load(Ordering::SeqCst)
    }

    fn lose(&self) {
        self.2.lost.fetch_add(1, Ordering::SeqCst);
    }

    fn take(&self, bytes: usize) -> Option<Box<dyn Piece>> {
        assert_eq!(bytes, BYTES);
        let memory = vec![0_u64; BYTES / 8 + 512].into_boxed_slice();
        let base = memory.as_ptr().addr().next_multiple_of(4096);
        *self.2.at.lock().unwrap() = Some(base);
        self.2.taken.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(Part(memory, self.2.clone(), AtomicBool::new(false))))
    }
}

struct Part(Box<[u64]>, Arc<Seen>, AtomicBool);

impl Piece for Part {
    fn base(&self) -> Option<NonNull<u8>> {
        let at = self.0.as_ptr().cast::<u8>();
        NonNull::new(at.wrapping_add(at.align_offset(4096)).cast_mut())
    }

    fn offset(&self) -> u64 {
        OFFSET
    }

    fn free(&self) {
        self.2.store(true, Ordering::SeqCst);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let count = if self.2.load(Ordering::SeqCst) { &self.1.freed } else { &self.1.left };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

fn service() -> Service {
    service_of(Box::new(Everything))
}

fn service_of(ways: Box<dyn Ways>) -> Service {
    let service = Service::start(ways, Limits::default()).unwrap();
    let spec = |guest: &str| GuestSpec { guest: guest.to_owned(), socket: None };
    service.keep(vec![spec("a"), spec("b")], sockets::here());
    service
}

fn admit(service: &Service, guest: &str, window: &Arc<Fake>) -> Option<Stream> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let socket = Arc::new(Untrusted::new(theirs, &Arc::default()).unwrap());
    let agent = Agent { guest: guest.to_owned(), user: 0, pid: 7, socket, window: window.clone() };
    service.admit(agent).then(|| Stream::new(ours))
}

fn offer(stream: &mut Stream, token: u64, own: &str, peer: &str) {
    let offered =
        Offered { own: own.parse().unwrap(), peer: peer.parse().unwrap(), namespace: 0, cookie: token };
    stream.send(&Frame::Said(old_offer(token), Some(offered)).bytes()).unwrap();
}

/// Has both programs offer a connection, the first one twice, as it is asked to.
fn offer_both(service: &Service, a: &mut Stream, b: &mut Stream) {
    offer(a, 7, A, B);
    until(|| service.status().offers == 1);
    offer(b, 9, B, A);
    assert_eq!(hear(a), Message::Again { token: 7 });
    offer(a, 7, A, B);
}

fn hear(stream: &mut Stream) -> Message {
    Message::read(&stream.receive().unwrap()).unwrap()
}

const A: &str = "10.1.1.1:80";
const B: &str = "10.1.1.2:4000";

/// Makes a pair; returns both programs and its number.
fn pair(service: &Service, window: &Arc<Fake>) -> (Stream, Stream, u64) {
    let (mut a, mut b) = (admit(service, "a", window).unwrap(), admit(service, "b", window).unwrap());
    offer_both(service, &mut a, &mut b);
    let Message::Matched { token: 7, pair, second: false, offset: OFFSET, .. } = hear(&mut a) else {
        panic!("no match");
    };
    assert_eq!(hear(&mut b), Message::Matched { token: 9, pair, second: true, offset: OFFSET, slot: 0 });
    (a, b, pair)
}

#[test]
fn programs_of_machines_get_memory_of_the_window_and_give_it_back() {
    let (service, (window, seen)) = (service(), Fake::new(1));
    let (mut a, mut b, pair) = pair(&service, &window);
    a.send(&Frame::Said(Message::Gone { token: 7, pair }, None).bytes()).unwrap();
    b.send(&Frame::End.bytes()).unwrap();
    until(|| seen.counts() == [1, 1, 0, 0]);
    assert!(service.status().pairs.is_empty());
}

/// All connections are with other hosts.
struct Elsewhere;

impl Ways for Elsewhere {
    fn inside(&self, _: &str, _: SocketAddr, _: SocketAddr) -> Option<Key> {
        None
    }

    fn elsewhere(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key> {
        Everything.inside(guest, own, peer)
    }

    fn may_carry(&self, _: &str, _: &Key) -> bool {
        true
    }

    fn may_share(&self, _: (&str, &str), _: &Key) -> bool {
        false
    }

    fn in_use(&self, _: &Key, _: (u64, u64)) {}
}

fn elsewhere(own: &str, peer: &str) -> Key {
    let end = |of: &str| {
        let of: SocketAddr = of.parse().unwrap();
        End { vrf: 1, addr: of.ip(), port: of.port() }
    };
    Key { within: None, own: end(own), peer: end(peer), seen: [end(own).addr, end(peer).addr] }
}

/// Offers a connection with another host; an agent that `relays` passes bells on.
fn offer_elsewhere(agent: &mut Stream, token: u64, relays: bool) {
    let offered = Offered { own: A.parse().unwrap(), peer: B.parse().unwrap(), namespace: 0, cookie: 1 };
    let offer = Message::Offer { token, doors: true, carries: true, relays };
    agent.send(&Frame::Said(offer, Some(offered)).bytes()).unwrap();
}

/// A connection with another host has memory of the window until the carriage has sent all of it, and its agent passes
/// bells on. A connection of an older agent stays with TCP.
#[test]
fn connections_with_other_hosts_have_memory_of_the_window() {
    let (service, (window, seen)) = (service_of(Box::new(Elsewhere)), Fake::new(1));
    let _carriage = service.carriage("a").unwrap();
    let mut a = admit(&service, "a", &window).unwrap();
    offer_elsewhere(&mut a, 1, false);
    assert_eq!(hear(&mut a), Message::Refused { token: 1 });
    offer_elsewhere(&mut a, 2, true);
    until(|| service.status().offers == 1);
    let (shared, key) = (&service.0, elsewhere(A, B));
    let new = shared.carry(key).unwrap();
    let (pair, second) = (new.number, false);
    assert_eq!(hear(&mut a), Message::Carried { token: 2, pair, second, offset: OFFSET });
    assert!(shared.carry(key).is_none(), "the offer is used up");
    let crate::carriage::Wake::Agent { program, token: 2 } = new.wake else { panic!("its bells") };
    shared.wake(program, 2, true);
    assert_eq!(hear(&mut a), Message::Wake { token: 2, room: true });
    // To return it, the window's thread writes.
    service.part(std::time::Duration::ZERO);
    assert_eq!(hear(&mut a), Message::Return { token: 2 });
    assert_eq!(new.memory.link().tx().wanted(), Direction::RETURNS);
    a.send(&Frame::Said(Message::Gone { token: 2, pair }, None).bytes()).unwrap();
    until(|| service.status().pairs.is_empty());
    assert_eq!(seen.counts(), [1, 0, 0, 0], "the carriage has it");
    drop(new);
    until(|| seen.counts() == [1, 1, 0, 0]);
}

/// Memory that no program got is free.
#[test]
fn memory_for_a_connection_that_may_not_be_carried_is_free() {
    let (service, (window, seen)) = (service_of(Box::new(Elsewhere)), Fake::new(1));
    let _carriage = service.carriage("a").unwrap();
    let mut a = admit(&service, "a", &window).unwrap();
    offer_elsewhere(&mut a, 1, true);
    until(|| service.status().offers == 1);
    service.part(std::time::Duration::ZERO);
    assert!(service.0.carry(elsewhere(A, B)).is_none());
    until(|| seen.counts() == [1, 1, 0, 0]);
}

#[test]
fn what_a_lost_program_may_use_stays() {
    let (service, (window, seen)) = (service(), Fake::new(1));
    let (a, mut b, _) = pair(&service, &window);
    drop(a);
    // The other program is told to return to TCP.
    assert_eq!(hear(&mut b), Message::Return { token: 9 });
    let base = seen.at.lock().unwrap().unwrap();
    // SAFETY: the service has the memory as long as the pair.
    let link = unsafe { Link::new(std::ptr::with_exposed_provenance(base), Side::First) };
    assert_eq!([link.tx(), link.rx()].map(Direction::wanted), [Direction::RETURNS; 2]);
    b.send(&Frame::End.bytes()).unwrap();
    until(|| seen.counts() == [1, 0, 1, 1]);
}

#[test]
fn machines_without_a_common_window_stay_with_tcp() {
    let (service, (window, seen), (other, _)) = (service(), Fake::new(1), Fake::new(2));
    let (mut a, mut b) = (admit(&service, "a", &window).unwrap(), admit(&service, "b", &other).unwrap());
    offer_both(&service, &mut a, &mut b);
    assert_eq!([hear(&mut a), hear(&mut b)], [7, 9].map(|token| Message::Refused { token }));
    assert_eq!(seen.counts()[0], 0);
}

#[test]
fn without_room_in_the_window_it_is_tcp() {
    let (service, (window, seen)) = (service(), Fake::new(1));
    seen.is_full.store(true, Ordering::SeqCst);
    let (mut a, mut b) = (admit(&service, "a", &window).unwrap(), admit(&service, "b", &window).unwrap());
    offer_both(&service, &mut a, &mut b);
    let mut refused = [hear(&mut a), hear(&mut b)];
    refused.sort_by_key(|message| message.bytes());
    assert_eq!(refused, [7, 9].map(|token| Message::Refused { token }));
    until(|| service.status().offers == 0);
}

#[test]
fn an_agent_can_offer_nothing_else() {
    let (service, (window, _)) = (service(), Fake::new(1));
    assert!(admit(&service, "c", &window).is_none());
    let mut a = admit(&service, "a", &window).unwrap();
    // Connections within the machine, and offers without a socket.
    offer(&mut a, 1, "127.0.0.1:80", "127.0.0.1:81");
    assert_eq!(hear(&mut a), Message::Refused { token: 1 });
    a.send(&Frame::Said(old_offer(2), None).bytes()).unwrap();
    assert_eq!(hear(&mut a), Message::Refused { token: 2 });
    a.send(b"nonsense").unwrap();
    assert!(a.receive().is_err());
}

/// Whatever an agent sends, the service serves others afterwards.
#[test]
fn hostile_agents() {
    let (service, (window, _)) = (service(), Fake::new(1));
    let come = std::panic::AssertUnwindSafe(|| admit(&service, "a", &window));
    let are_gone = std::panic::AssertUnwindSafe(|| service.status().guests[0].1 == 0);
    bolero::check!().with_type::<Vec<(bool, Vec<u8>)>>().for_each(|frames| {
        let Some(mut agent) = (*come)() else { panic!("no room") };
        for (is_offer, bytes) in frames {
            let bytes = match is_offer {
                true => [&old_offer(1).bytes()[..], bytes].concat(),
                false => bytes.clone(),
            };
            if agent.send(&bytes).is_err() {
                break;
            }
        }
        drop(agent);
        until(&*are_gone);
    });
    pair(&service, &window);
}
