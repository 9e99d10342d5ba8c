//! The accounts to which connections are charged, and how much of the table each uses.

use super::zeroed::Zeroed;
use executor::FlowUse;
use model::{Seconds, VifId};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The account to which a connection is charged. Connections that a guest opens and connections that others
/// open to it through a wire are two accounts, so that hosts outside cannot use up the part that the guest
/// needs for its own connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    vif: VifId,
    from_wire: bool,
}

impl Account {
    #[must_use]
    pub const fn of_guest(vif: VifId) -> Self {
        Self { vif, from_wire: false }
    }

    /// Returns the account of connections that come through a wire to this guest, or, if they go to no
    /// particular guest, through this wire.
    #[must_use]
    pub const fn from_wire(to: VifId) -> Self {
        Self { vif: to, from_wire: true }
    }

    /// Returns the interface, and whether the connections came through a wire.
    #[must_use]
    pub const fn parts(self) -> (VifId, bool) {
        (self.vif, self.from_wire)
    }

    /// Returns its number, less than [`ACCOUNTS`].
    pub(super) fn number(self) -> u32 {
        2 * u32::from(self.vif.0) + u32::from(self.from_wire)
    }

    pub(super) const fn numbered(number: u32) -> Self {
        Self { vif: VifId((number / 2) as u16), from_wire: number % 2 == 1 }
    }
}

const ACCOUNTS: usize = 2 << 16;

const HELD: usize = 0;
/// Number of connections that it opened within a second (low half), and that second (high half).
const OPENED: usize = 1;
/// Number of connections that it was refused.
const REFUSED: usize = 2;
/// Number of its connections that others evicted before they timed out.
const DISPLACED: usize = 3;

/// An account's part of a full table.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// An equal part for each account that has connections.
    pub fair: u64,
    /// Half of the share. Whatever others do, an account keeps this many connections.
    pub reserve: u64,
}

pub(super) struct Accounts {
    records: Zeroed<4>,
    /// Number of accounts that have connections. Threads that race may make it negative for a moment.
    active: AtomicI64,
    capacity: u64,
    /// Most connections of an account at a time.
    most: u64,
    /// New connections per second: a token bucket that is refilled each second.
    per_second: u32,
}

impl Accounts {
    /// Creates the accounts of a table of `capacity` connections, of which an account may have `most`, and
    /// open `per_second` new ones per second.
    pub fn new(capacity: u64, most: u64, per_second: u32) -> Self {
        let records = Zeroed::new(ACCOUNTS);
        Self { records, active: AtomicI64::new(0), capacity, most, per_second }
    }

    fn word(&self, account: Account, word: usize) -> &AtomicU64 {
        &self.records.records()[account.number() as usize][word]
    }

    /// Counts an attempt to open a connection. Returns whether it is within the rate.
    pub fn open(&self, account: Account, now: Seconds) -> bool {
        let second = u64::from(now) << 32;
        let open = |word: u64| {
            let opened = if word >> 32 == second >> 32 { word as u32 } else { 0 };
            (opened < self.per_second).then(|| second + u64::from(opened + 1))
        };
        self.word(account, OPENED).fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).is_ok()
    }

    /// Charges a connection. Returns whether the account may have it.
    pub fn take(&self, account: Account) -> bool {
        let add = |held| (held < self.most).then_some(held + 1);
        let before = self.word(account, HELD).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if before == Ok(0) {
            self.active.fetch_add(1, Ordering::Relaxed);
        }
        before.is_ok()
    }

    /// Takes back the charge for a connection that is gone.
    pub fn give_back(&self, account: Account) {
        if self.word(account, HELD).fetch_sub(1, Ordering::Relaxed) == 1 {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn refuse(&self, account: Account) {
        self.word(account, REFUSED).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was displaced before it timed out.
    pub fn displace(&self, account: Account) {
        self.word(account, DISPLACED).fetch_add(1, Ordering::Relaxed);
    }

    pub fn held(&self, account: Account) -> u64 {
        self.word(account, HELD).load(Ordering::Relaxed)
    }

    /// Returns the part of a full table that each account may have.
    pub fn share(&self) -> Share {
        let active = self.active.load(Ordering::Relaxed).max(1).unsigned_abs();
        let fair = (self.capacity / active).max(1);
        Share { fair, reserve: fair / 2 }
    }

    /// Returns an interface's use of the table, for display.
    pub fn used_by(&self, vif: VifId) -> FlowUse {
        let (own, wire) = (Account::of_guest(vif), Account::from_wire(vif));
        let both = |word| [own, wire].map(|at| self.word(at, word).load(Ordering::Relaxed)).iter().sum();
        FlowUse {
            opened: self.held(own),
            from_wire: self.held(wire),
            refused: both(REFUSED),
            displaced: both(DISPLACED),
        }
    }
}
