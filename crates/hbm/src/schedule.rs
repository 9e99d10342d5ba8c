//! The controller: chooses the next command. It serves one direction at a time, and refreshes before anything else. The
//! oldest request whose row is open comes first. In parallel, because there are two buses, comes the oldest request
//! whose bank is closed.
//!
//! The controller can't get stuck: among requests that wait for each other's ID, the oldest is always the oldest of its
//! bank, so its bank is open for it or for even older requests. A row is kept open only for a request that can be
//! served at once.

use crate::channel::Channel;
use crate::device::bits;
use crate::queue::Queue;
use crate::timing::{BANKS, Refresh};
use crate::trace::Kind;

const ALL: u16 = u16::MAX;

/// The controller's state besides queues and memory.
pub(crate) struct Schedule {
    writing: bool,
    hits: [u8; BANKS], // requests that the open row has served
    refresh_due: u64,
    refresh_banks: u16,
}

impl Schedule {
    pub(crate) fn new(refresh: Refresh) -> Self {
        let (refresh_due, refresh_banks) = match refresh {
            Refresh::AllBank { refi, .. } => (refi, ALL),
            Refresh::PerBank { refi, .. } => (refi, 1),
        };
        Self { writing: false, hits: [0; BANKS], refresh_due: refresh_due.into(), refresh_banks }
    }

    fn refreshing(&self, now: u64) -> u16 {
        if now >= self.refresh_due { self.refresh_banks } else { 0 }
    }

    fn refreshed(&mut self, refresh: Refresh) {
        let refi = match refresh {
            Refresh::AllBank { refi, .. } => refi,
            Refresh::PerBank { refi, .. } => {
                self.refresh_banks = self.refresh_banks.rotate_left(1);
                refi
            }
        };
        self.refresh_due += u64::from(refi);
    }
}

impl Channel {
    /// Sends the commands that can be sent at `now`. Returns when to check again.
    pub(crate) fn step(&mut self, now: u64) -> u64 {
        let arrivals = self.reads.admit(now).min(self.writes.admit(now));
        let turn = self.turn(now);
        let due = if now < self.schedule.refresh_due { self.schedule.refresh_due } else { u64::MAX };
        let column = self.send_column(now);
        let row = self.send_refresh(now).min(self.send_precharge(now)).min(self.send_activate(now));
        arrivals.min(turn).min(due).min(column).min(row).max(now + 1)
    }

    fn queue(&mut self) -> &mut Queue {
        if self.schedule.writing { &mut self.writes } else { &mut self.reads }
    }

    /// Changes the direction if the other one has waited long enough or this one has nothing to do.
    fn turn(&mut self, now: u64) -> u64 {
        let (this, other) = match self.schedule.writing {
            false => (&mut self.reads, &self.writes),
            true => (&mut self.writes, &self.reads),
        };
        if other.pending() == 0 {
            return u64::MAX;
        }
        // Long enough for each direction to serve its oldest request, whatever the other one left behind.
        let turn = u64::from(self.controller.turn.max(2 * self.device.timing.rc));
        let at = other.since + turn;
        if this.pending() != 0 && now < at {
            return at;
        }
        this.since = now;
        self.schedule.writing = !self.schedule.writing;
        now + turn // what has just lost its turn waits from now on
    }

    /// Sends a read or write command for the oldest request that can have one. Returns when to check again.
    fn send_column(&mut self, now: u64) -> u64 {
        let writing = self.schedule.writing;
        if self.is_clogged(writing) {
            return u64::MAX; // until a response has left
        }
        let hits = self.controller.row_hits > 1;
        let queue = if writing { &self.writes } else { &self.reads };
        let (mut best, mut next) = (None::<(u64, u8, u8)>, u64::MAX);
        for bank in bits(self.device.open_for(writing) & queue.pending()) {
            let at = self.device.column_at(bank, writing);
            if at > now {
                next = next.min(at);
            } else if let Some((age, slot)) = queue.hit(bank, self.device.row(bank), hits)
                && best.is_none_or(|(oldest, ..)| age < oldest)
            {
                best = Some((age, slot, bank));
            }
        }
        let Some((_, slot, bank)) = best else { return next };
        self.column(now, slot, bank);
        now + 1
    }

    fn column(&mut self, now: u64, slot: u8, bank: u8) {
        let writing = self.schedule.writing;
        let done = self.move_data(now, slot);
        let close = done && {
            self.schedule.hits[bank as usize] += 1;
            let last = self.schedule.hits[bank as usize] >= self.controller.row_hits;
            let row = self.device.row(bank);
            last || self.schedule.refreshing(now) & 1 << bank != 0 || !self.queue().another(bank, row, slot)
        };
        self.device.column(now, bank, writing, close);
        self.note(now, if writing { Kind::Write { bank, close } } else { Kind::Read { bank, close } });
    }

    /// Moves a burst between the request and the memory. Returns whether it was the request's last.
    fn move_data(&mut self, now: u64, slot: u8) -> bool {
        let writing = self.schedule.writing;
        let bytes = self.device.timing.burst_bytes;
        let queue = if writing { &mut self.writes } else { &mut self.reads };
        let request = queue.slot(slot);
        let (beats, from) = (request.beats, request.moved);
        let until = (from + (bytes / 32).clamp(1, 2) as u8).min(beats);
        for (beat, data) in request.data.iter_mut().enumerate().take(until.into()).skip(from.into()) {
            let addr = request.addr + 32 * beat as u64;
            if writing {
                self.memory.write(addr, data);
            } else {
                *data = self.memory.read(addr);
            }
        }
        request.moved = until;
        if until < beats {
            return false;
        }
        let request = queue.remove(slot);
        self.respond(now, writing, &request);
        true
    }

    /// Refreshes the banks that are due, once they are closed.
    fn send_refresh(&mut self, now: u64) -> u64 {
        let banks = self.schedule.refreshing(now);
        if banks == 0 || banks & self.device.open() != 0 {
            return u64::MAX;
        }
        let at = self.device.refresh_at(banks);
        if at > now {
            return at;
        }
        self.device.refresh(now, banks);
        self.schedule.refreshed(self.device.timing.refresh);
        self.note(now, Kind::Refresh { banks });
        now + 1
    }

    /// Closes a bank that is due for a refresh, or in the way of this direction.
    fn send_precharge(&mut self, now: u64) -> u64 {
        let writing = self.schedule.writing;
        let queue = if writing { &self.writes } else { &self.reads };
        let ours = self.device.open_for(writing);
        let due = self.schedule.refreshing(now) | queue.wanted() & !ours;
        // Requests that can use the open row still do; the last one closes it.
        let used = if self.is_clogged(writing) { 0 } else { ours & queue.pending() };
        let hits = self.controller.row_hits > 1;
        let mut next = u64::MAX;
        for bank in bits(self.device.open() & due) {
            if used & 1 << bank != 0 && queue.hit(bank, self.device.row(bank), hits).is_some() {
                continue;
            }
            let at = self.device.precharge_at(bank);
            if at <= now {
                self.device.precharge(now, bank);
                self.note(now, Kind::Precharge { bank });
                return now + 1;
            }
            next = next.min(at);
        }
        next
    }

    /// Opens the row of the oldest request whose bank is closed.
    fn send_activate(&mut self, now: u64) -> u64 {
        let writing = self.schedule.writing;
        let queue = if writing { &self.writes } else { &self.reads };
        let (mut best, mut next) = (None::<(u64, u8, u32)>, u64::MAX);
        for bank in bits(queue.wanted() & !self.device.open() & !self.schedule.refreshing(now)) {
            let at = self.device.activate_at(bank);
            if at > now {
                next = next.min(at);
                continue;
            }
            let first = queue.first(bank);
            if best.is_none_or(|(oldest, ..)| first.age < oldest) {
                best = Some((first.age, bank, first.row));
            }
        }
        let Some((_, bank, row)) = best else { return next };
        self.device.activate(now, bank, row, writing);
        self.schedule.hits[bank as usize] = 0;
        self.note(now, Kind::Activate { bank, row });
        now + 1
    }
}
