//! Requests of one direction: on their way to the controller, then in its window.

use std::collections::VecDeque;

use crate::device::bits;
use crate::timing::BANKS;

/// Most requests in a window.
pub(crate) const SLOTS: usize = 64;
const IDS: usize = 256;

/// A read or a write of one or two beats.
#[derive(Clone, Copy, Default)]
pub(crate) struct Request {
    pub(crate) id: u8,
    pub(crate) bank: u8,
    pub(crate) row: u32,
    pub(crate) addr: u64,
    pub(crate) beats: u8,
    pub(crate) moved: u8, // beats that column commands have moved
    pub(crate) data: [[u8; 32]; 2],
    pub(crate) arrives: u64, // when it reaches the controller, tCK
    pub(crate) age: u64,     // its number among all requests
    pub(crate) turn: u32,    // its number among those of its ID
}

/// The requests of one direction.
pub(crate) struct Queue {
    incoming: VecDeque<Request>,
    capacity: usize,
    slots: Box<[Request; SLOTS]>,
    free: u64,
    banks: [u64; BANKS], // slots whose requests go to a bank
    oldest: [u8; BANKS], // the slot of the oldest of them
    pending: u16,        // banks with requests
    in_order: bool,
    accepted: u64,
    served: u64,
    accepted_of: Box<[u32; IDS]>,
    served_of: Box<[u32; IDS]>,
    /// Time since which there have been requests that had to wait for the other direction, in tCK.
    pub(crate) since: u64,
}

impl Queue {
    pub(crate) fn new(window: usize, in_order: bool, incoming: usize) -> Self {
        Self {
            incoming: VecDeque::with_capacity(incoming),
            capacity: incoming,
            slots: Box::new([Request::default(); SLOTS]),
            free: u64::MAX >> (SLOTS - window.clamp(1, SLOTS)),
            banks: [0; BANKS],
            oldest: [0; BANKS],
            pending: 0,
            in_order,
            accepted: 0,
            served: 0,
            accepted_of: Box::new([0; IDS]),
            served_of: Box::new([0; IDS]),
            since: 0,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.incoming.len() < self.capacity
    }

    /// Queues a request that is on its way to the controller. There must be room.
    pub(crate) fn push(&mut self, mut request: Request) {
        let turn = &mut self.accepted_of[request.id as usize];
        (request.age, request.turn) = (self.accepted, *turn);
        (self.accepted, *turn) = (self.accepted + 1, turn.wrapping_add(1));
        self.incoming.push_back(request);
    }

    /// Returns the number of requests that were accepted but not served.
    pub(crate) fn outstanding(&self) -> u64 {
        self.accepted - self.served
    }

    /// Admits arrived requests to the window. Returns when the next one will arrive.
    pub(crate) fn admit(&mut self, now: u64) -> u64 {
        while self.free != 0
            && let Some(request) = self.incoming.front()
        {
            if request.arrives > now {
                return request.arrives;
            }
            let (slot, bank) = (self.free.trailing_zeros() as u8, request.bank as usize);
            if self.pending == 0 {
                self.since = now;
            }
            if self.banks[bank] == 0 {
                self.oldest[bank] = slot;
            }
            self.slots[slot as usize] = *request;
            self.incoming.pop_front();
            self.free &= !(1 << slot);
            self.banks[bank] |= 1 << slot;
            self.pending |= 1 << bank;
        }
        u64::MAX // a full window lets in no one before it has served someone
    }

    /// Returns the set of banks of the requests in the window.
    pub(crate) fn pending(&self) -> u16 {
        self.pending
    }

    /// Returns the set of banks whose oldest request may have its row activated.
    pub(crate) fn wanted(&self) -> u16 {
        if !self.in_order {
            return self.pending;
        }
        bits(self.pending)
            .filter(|&bank| self.first(bank).age == self.served)
            .fold(0, |all, bank| all | 1 << bank)
    }

    /// Returns the oldest request of a bank, which must have one.
    pub(crate) fn first(&self, bank: u8) -> &Request {
        &self.slots[self.oldest[bank as usize] as usize]
    }

    pub(crate) fn slot(&mut self, slot: u8) -> &mut Request {
        &mut self.slots[slot as usize]
    }

    /// Returns the age and slot of the oldest request for the open row of a bank that the order of requests allows to
    /// have a column command.
    pub(crate) fn hit(&self, bank: u8, row: u32, hits: bool) -> Option<(u64, u8)> {
        let oldest = self.oldest[bank as usize];
        if !hits {
            let first = &self.slots[oldest as usize];
            return self.is_next(first).then_some((first.age, oldest));
        }
        self.hits(bank, row).min()
    }

    /// Returns whether a request besides that in `slot` is for the same row and could be served now.
    pub(crate) fn another(&self, bank: u8, row: u32, slot: u8) -> bool {
        self.hits(bank, row).any(|(_, other)| other != slot)
    }

    fn hits(&self, bank: u8, row: u32) -> impl Iterator<Item = (u64, u8)> {
        slots(self.banks[bank as usize])
            .map(|slot| (slot, &self.slots[slot as usize]))
            .filter(move |(_, request)| request.row == row && self.is_next(request))
            .map(|(slot, request)| (request.age, slot))
    }

    fn is_next(&self, request: &Request) -> bool {
        request.turn == self.served_of[request.id as usize] && (!self.in_order || request.age == self.served)
    }

    pub(crate) fn remove(&mut self, slot: u8) -> Request {
        let request = self.slots[slot as usize];
        let bank = request.bank as usize;
        self.free |= 1 << slot;
        self.banks[bank] &= !(1 << slot);
        self.served += 1;
        let served = &mut self.served_of[request.id as usize];
        *served = served.wrapping_add(1);
        match slots(self.banks[bank]).min_by_key(|&slot| self.slots[slot as usize].age) {
            Some(oldest) => self.oldest[bank] = oldest,
            None => self.pending &= !(1 << bank),
        }
        request
    }
}

fn slots(mut mask: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as u8;
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
