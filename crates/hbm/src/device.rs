//! The memory's own state: open rows, and the times from which on each command is allowed. All times are in tCK.

use crate::timing::{BANKS, GROUPS, Refresh, Timing};

const ROW: usize = 0;

#[derive(Clone, Copy, Default)]
struct Bank {
    row: u32,
    act: u64, // earliest time of an activate or a refresh; the fields below: of the other commands
    rd: u64,
    wr: u64,
    pre: u64,
}

#[derive(Clone, Copy, Default)]
struct Allowed {
    act: u64,
    rd: u64,
    wr: u64,
}

/// The state of the memory. It chooses no commands; the caller may give only commands that are allowed.
pub(crate) struct Device {
    pub(crate) timing: Timing,
    banks: [Bank; BANKS],
    groups: [Allowed; GROUPS],
    all: Allowed,
    faw: [u64; 4], // the time at which each of the last four activates stops to count
    oldest_act: usize,
    bus: [u64; 2], // first free cycle of the row bus and of the column bus
    column_bus: usize,
    open: u16,
    for_writes: u16,
}

impl Device {
    pub(crate) fn new(timing: Timing) -> Self {
        let column_bus = if timing.shared_bus { ROW } else { ROW + 1 };
        Self {
            timing,
            banks: Default::default(),
            groups: Default::default(),
            all: Allowed::default(),
            faw: [0; 4],
            oldest_act: 0,
            bus: [0; 2],
            column_bus,
            open: 0,
            for_writes: 0,
        }
    }

    /// Returns the set of banks with an open row.
    pub(crate) fn open(&self) -> u16 {
        self.open
    }

    /// Returns the set of banks with a row that was opened for requests of this direction.
    pub(crate) fn open_for(&self, write: bool) -> u16 {
        self.open & if write { self.for_writes } else { !self.for_writes }
    }

    /// Returns the row that is open, or was last.
    pub(crate) fn row(&self, bank: u8) -> u32 {
        self.banks[bank as usize].row
    }

    pub(crate) fn activate_at(&self, bank: u8) -> u64 {
        let bus = self.bus[ROW] + u64::from(self.timing.act_cycles) - 1;
        let group = self.groups[bank as usize % GROUPS].act;
        self.banks[bank as usize].act.max(group).max(self.all.act).max(self.faw[self.oldest_act]).max(bus)
    }

    pub(crate) fn column_at(&self, bank: u8, write: bool) -> u64 {
        let (bank, group) = (&self.banks[bank as usize], &self.groups[bank as usize % GROUPS]);
        let allowed = if write {
            bank.wr.max(group.wr).max(self.all.wr)
        } else {
            bank.rd.max(group.rd).max(self.all.rd)
        };
        allowed.max(self.bus[self.column_bus])
    }

    pub(crate) fn precharge_at(&self, bank: u8) -> u64 {
        self.banks[bank as usize].pre.max(self.bus[ROW])
    }

    /// Returns the time from which on `banks`, all of them closed, may be refreshed.
    pub(crate) fn refresh_at(&self, banks: u16) -> u64 {
        bits(banks).map(|bank| self.banks[bank as usize].act).fold(self.all.act.max(self.bus[ROW]), u64::max)
    }

    pub(crate) fn activate(&mut self, now: u64, bank: u8, row: u32, write: bool) {
        let t = &self.timing;
        let after = |tck: u32| now + u64::from(tck);
        self.banks[bank as usize] =
            Bank { row, act: after(t.rc), rd: after(t.rcd_rd), wr: after(t.rcd_wr), pre: after(t.ras) };
        self.groups[bank as usize % GROUPS].act = after(t.rrd_l);
        self.all.act = after(t.rrd_s);
        self.faw[self.oldest_act] = after(t.faw);
        self.oldest_act = (self.oldest_act + 1) % self.faw.len();
        self.bus[ROW] = now + 1;
        self.open |= 1 << bank;
        self.for_writes = self.for_writes & !(1 << bank) | u16::from(write) << bank;
    }

    /// Reads or writes one burst. With `close`, precharges the bank as soon as that is allowed.
    pub(crate) fn column(&mut self, now: u64, bank: u8, write: bool, close: bool) {
        let t = self.timing;
        let after = |tck: u32| now + u64::from(tck);
        let group = &mut self.groups[bank as usize % GROUPS];
        let (again, again_l) = (after(t.ccd_s.max(t.burst)), after(t.ccd_l.max(t.burst)));
        let pre = if write {
            let data_end = t.cwl + t.burst;
            (self.all.wr, group.wr) = (again, again_l);
            (self.all.rd, group.rd) = (after(data_end + t.wtr_s), after(data_end + t.wtr_l));
            after(data_end + t.wr)
        } else {
            (self.all.rd, group.rd) = (again, again_l);
            self.all.wr = after((t.cl + t.burst + t.bus_turn).saturating_sub(t.cwl));
            after(t.rtp)
        };
        self.bus[self.column_bus] = now + 1;
        let state = &mut self.banks[bank as usize];
        state.pre = state.pre.max(pre);
        if close {
            let precharged = state.pre;
            self.close(precharged, bank);
        }
    }

    pub(crate) fn precharge(&mut self, now: u64, bank: u8) {
        self.bus[ROW] = now + 1;
        self.close(now, bank);
    }

    fn close(&mut self, at: u64, bank: u8) {
        let state = &mut self.banks[bank as usize];
        state.act = state.act.max(at + u64::from(self.timing.rp));
        self.open &= !(1 << bank);
    }

    pub(crate) fn refresh(&mut self, now: u64, banks: u16) {
        let rfc = match self.timing.refresh {
            Refresh::AllBank { rfc, .. } => rfc,
            Refresh::PerBank { rfc, rrefd, .. } => {
                self.all.act = self.all.act.max(now + u64::from(rrefd));
                rfc
            }
        };
        for bank in bits(banks) {
            self.banks[bank as usize].act = now + u64::from(rfc);
        }
        self.bus[ROW] = now + 1;
    }
}

/// Iterates over the bits set in `mask`, lowest first.
pub(crate) fn bits(mut mask: u16) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as u8;
        mask &= mask.wrapping_sub(1);
        (bit < 16).then_some(bit)
    })
}
