//! Owns lines: reliable connections between the daemon's own end of a device and those of devices on other hosts, by
//! which daemons exchange messages for somebody else ([`Freight`]). May import `streams` and what stands below it.
//!
//! A device with lines has a thread for them. Packets of lines are those of the guest, as packets of its programs are.

mod hello;
mod line;
mod work;

use crate::base::clock::monotonic;
use crate::base::header::is_group;
use crate::base::random;
use crate::inbox::message::Message;
use crate::inbox::{Arrivals, Inbox, Packet};
use crate::net::adapter::{Adapter, SERVICE_QPN};
use crate::net::fabric::Fabric;
use hello::Hello;
use line::{Line, Surroundings};
use packet::roce;
use ringport::Uplink;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use work::Work;

/// Bytes at the beginning of a message, which say what it is. They fit any packet.
pub const HEAD: usize = 128;
/// Lines of a device.
const LINES: usize = 256;

/// The addresses of a line's ends, IPv4 ones mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// The device's own.
    pub own: Ipv6Addr,
    /// The other device's.
    pub peer: Ipv6Addr,
}

/// Bytes that a message takes along. They are copied when packets are made, and when these are lost again.
pub trait Cargo: Send + Sync {
    /// Copies bytes from a position on.
    fn read(&self, from: u64, to: &mut [u8]);
}

/// A message.
pub struct Load {
    /// The beginning, which says what it is.
    pub head: [u8; HEAD],
    /// Bytes after that, of `cargo`.
    pub len: u32,
    /// The owner of the bytes that follow.
    pub cargo: Option<Arc<dyn Cargo>>,
    /// The position there of the first one.
    pub from: u64,
}

/// The user of a device's lines. The thread of the lines calls all of it.
pub trait Freight: Send {
    /// Returns a descriptor that becomes readable when there is something to do.
    fn bell(&self) -> BorrowedFd<'_>;
    /// Looks for what there is to do. Returns whether there was something.
    fn look(&mut self) -> bool;
    /// Asks to be told by the bell from now on. Returns whether there is something already.
    fn arm(&mut self) -> bool;
    /// Returns the lines that are wanted now.
    fn wanted(&mut self) -> Vec<Ends>;
    /// Notes that there is a line. `is_same`: the other end is the one of the line before, and has forgotten nothing.
    fn up(&mut self, ends: Ends, is_same: bool);
    /// Notes that a line has ended. It is not known which of the last messages have arrived.
    fn down(&mut self, ends: Ends);
    /// Notes that nobody answers, for a while.
    fn unreachable(&mut self, ends: Ends);
    /// Returns the next message for a line.
    fn next(&mut self, ends: Ends) -> Option<Load>;
    /// Takes bytes of a message that is arriving, `at` bytes after its beginning.
    fn store(&mut self, ends: Ends, head: &[u8; HEAD], at: u32, bytes: &[u8]);
    /// Takes note that a message has arrived as a whole, with `len` bytes after its beginning.
    fn arrived(&mut self, ends: Ends, head: &[u8; HEAD], len: u32);
}

/// The lines of a device.
pub(crate) struct Lines {
    pub adapter: Arc<Adapter>,
    pub fabric: Arc<Fabric>,
    pub inbox: Arc<Inbox<Message>>,
    pub uplink: Uplink,
    pub freight: Box<dyn Freight>,
}

/// The thread's own state.
struct Thread {
    lines: Vec<Line>,
    boot: u64,
    spare: Vec<u8>,
    frames: u32,
}

impl Lines {
    /// Runs the thread, until the device closes.
    pub fn run(mut self) {
        let boot = u64::from(random::number()) << 32 | u64::from(random::number());
        let mut thread = Thread { lines: Vec::new(), boot, spare: Vec::new(), frames: 0 };
        let mut arrivals = Arrivals::default();
        while !self.adapter.is_closing() {
            self.inbox.take(&mut arrivals);
            let mut has_worked = !arrivals.packets.is_empty();
            while let Some(packet) = arrivals.packets.pop_front() {
                self.receive(&mut thread, &packet);
                arrivals.give_back(packet);
            }
            self.inbox.settle(&mut arrivals);
            has_worked |= self.freight.look();
            let deadline = self.work(&mut thread);
            if !has_worked && deadline.is_none_or(|deadline| deadline > monotonic()) && !self.freight.arm() {
                self.sleep(deadline);
            }
        }
        self.inbox.close();
    }

    fn sleep(&self, deadline: Option<Duration>) {
        let limit = if self.inbox.set_asleep() {
            Some(Timespec::default())
        } else {
            deadline.map(|deadline| {
                let left = deadline.saturating_sub(monotonic());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            })
        };
        let mut wanted = [self.inbox.event().as_fd(), self.freight.bell()]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        _ = poll(&mut wanted, limit.as_ref());
        self.inbox.set_awake();
        self.inbox.drain();
    }

    /// Returns what lines need, and what they are for.
    fn around<'a>(
        &'a mut self,
        thread: &'a mut Thread,
    ) -> (Surroundings<'a>, &'a mut Vec<Line>, &'a mut dyn Freight) {
        let Thread { lines, boot, spare, frames } = thread;
        let mtu = self.adapter.spec().active_mtu() as u8;
        let Self { adapter, fabric, inbox, uplink, freight } = self;
        let work = Work { adapter, fabric, inbox, uplink, spare, frames };
        (Surroundings { work, boot: *boot, mtu, now: monotonic() }, lines, &mut **freight)
    }

    /// Handles a packet for one of the daemon's queue pairs.
    fn receive(&mut self, thread: &mut Thread, packet: &Packet) {
        let Ok(datagram) = roce::parse(&packet.bytes) else { return };
        let ends = Ends { own: packet.header.destination, peer: packet.header.source };
        let (mut around, lines, freight) = self.around(thread);
        if packet.qpn != SERVICE_QPN {
            let its = |line: &&mut Line| line.ends == ends && line.has(packet.qpn);
            if let Some(line) = lines.iter_mut().find(its) {
                line.receive(&datagram, &mut around, freight);
            }
            return;
        }
        let Some(hello) = Hello::read(&datagram).filter(|_| !packet.is_local && !is_group(ends.peer)) else {
            return;
        };
        if !lines.iter().any(|line| line.ends == ends) && lines.len() < LINES {
            lines.push(Line::new(ends));
        }
        if let Some(line) = lines.iter_mut().find(|line| line.ends == ends) {
            line.hear(&hello, &mut around, freight);
        }
    }

    /// Works for all lines. Returns when to come again.
    fn work(&mut self, thread: &mut Thread) -> Option<Duration> {
        for ends in self.freight.wanted() {
            if !thread.lines.iter().any(|line| line.ends == ends) && thread.lines.len() < LINES {
                thread.lines.push(Line::new(ends));
            }
            let (mut around, lines, _) = self.around(thread);
            lines.iter_mut().filter(|line| line.ends == ends).for_each(|line| line.call(&mut around));
        }
        let (mut around, lines, freight) = self.around(thread);
        let next = lines.iter_mut().filter_map(|line| line.work(&mut around, freight)).min();
        around.work.ring();
        // As long as there is room, the other daemons stay known.
        if lines.len() == LINES {
            lines.retain(|line| !line.is_idle());
        }
        next
    }
}
