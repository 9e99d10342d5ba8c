//! The reader of a direction. Its own state lies where the peer can't write.

use crate::Breach;
use crate::layout::{Direction, Link, SIZE};

/// Bytes after which room is shown to the sender.
const PIECE: usize = 32 << 10;

/// The state of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reader {
    epoch: u32,
    rd: u64,
    /// The sender's position, as last seen.
    wr: u64,
    /// Bytes taken from the kernel's stream, bells included.
    k: u64,
    /// The last switches, if the sender has gone back for good: what it writes later counts no more.
    sealed: Option<Sealed>,
}

/// A sender's last epoch, and the switches to it and to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sealed {
    epoch: u32,
    log: [(u64, u64); 2],
}

/// The next thing in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes of the kernel, as many at most. The sender may switch meanwhile: see [`Reader::limit`].
    Kernel(u64),
    /// As many bytes in the ring.
    Ring(u64),
    /// As many bells, exactly, before the kernel's bytes go on.
    Bells(u64),
    /// The ring is empty. What is in the kernel's stream are bells, unless the sender has switched meanwhile
    /// ([`Reader::bells`]).
    Empty,
}

impl Reader {
    /// Starts to follow switches: `k` bytes were taken from the kernel's stream so far.
    pub fn start(&mut self, dir: &Direction, k: u64) {
        self.k = k;
        dir.set_rx_k(k);
        dir.arm();
        dir.set_ready();
    }

    /// Returns the epoch in which it reads.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns whether the reader has come to a ring.
    #[must_use]
    pub const fn is_ring(&self) -> bool {
        self.epoch % 2 == 1
    }

    /// Follows no switch after the last one, if the sender has gone back to the kernel for good. Returns whether it has.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn seal(&mut self, dir: &Direction) -> Result<bool, Breach> {
        if self.sealed.is_some() {
            return Ok(true);
        }
        let epoch = dir.epoch();
        if !dir.has_left() || epoch % 2 == 1 {
            return Ok(false);
        }
        self.look(dir)?;
        let log = [0, 1].map(|n| dir.switch(epoch.wrapping_sub(n)));
        if dir.epoch() != epoch {
            return Err(Breach::Epoch);
        }
        self.sealed = Some(Sealed { epoch, log });
        Ok(true)
    }

    fn epoch_of(&self, dir: &Direction) -> u32 {
        self.sealed.map_or_else(|| dir.epoch(), |last| last.epoch)
    }

    fn switch_to(&self, dir: &Direction, epoch: u32) -> (u64, u64) {
        match self.sealed {
            Some(last) => last.log[last.epoch.wrapping_sub(epoch) as usize % 2],
            None => dir.switch(epoch),
        }
    }

    /// Returns the sender's epoch, which is this one or the next, and whether it is the next.
    fn look(&self, dir: &Direction) -> Result<bool, Breach> {
        match self.epoch_of(dir).wrapping_sub(self.epoch) {
            0 => Ok(false),
            // A sender may go back to the kernel before the reader has seen that it came to the ring.
            1 => Ok(true),
            2 if !self.is_ring() => Ok(true),
            _ => Err(Breach::Epoch),
        }
    }

    /// Returns how many bytes from here on go by the way of this epoch, if the sender has switched.
    fn rest(&self, dir: &Direction) -> Result<Option<(u64, u64)>, Breach> {
        if !self.look(dir)? {
            return Ok(None);
        }
        let (k, r) = self.switch_to(dir, self.epoch.wrapping_add(1));
        let (k, r) = (k.checked_sub(self.k), r.checked_sub(self.rd));
        Ok(Some((k.ok_or(Breach::Position)?, r.ok_or(Breach::Position)?)))
    }

    fn advance(&mut self, dir: &Direction) {
        self.epoch = self.epoch.wrapping_add(1);
        dir.acknowledge(self.epoch);
    }

    /// Returns what comes next.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn step(&mut self, dir: &Direction) -> Result<Step, Breach> {
        loop {
            let rest = self.rest(dir)?;
            if !self.is_ring() {
                match rest {
                    Some((0, 0)) => self.advance(dir),
                    // The ring stands still while bytes go by the kernel.
                    Some((_, 1..)) => return Err(Breach::Position),
                    rest => return Ok(Step::Kernel(rest.map_or(u64::MAX, |(k, _)| k))),
                }
                continue;
            }
            let Some((bells, end)) = rest else {
                if self.wr == self.rd {
                    self.wr = self.check(dir.wr())?;
                }
                let len = self.ahead();
                return Ok(if len == 0 { Step::Empty } else { Step::Ring(len) });
            };
            if end > 0 {
                self.wr = self.check(self.rd.wrapping_add(end))?;
                return Ok(Step::Ring(end));
            }
            // The sender may have taken bytes back, to send them by the kernel.
            self.wr = self.rd;
            if bells > 0 {
                return Ok(Step::Bells(bells));
            }
            self.advance(dir);
        }
    }

    /// Returns whether the sender has written or switched since this reader looked. Changes nothing.
    #[must_use]
    pub fn has_news(&self, dir: &Direction) -> bool {
        let epoch = self.epoch_of(dir);
        (self.is_ring() && self.sealed.is_none() && dir.wr() != self.rd) || epoch != self.epoch
    }

    /// Returns how many bytes are known to be in the ring. This state may lie where a fork of the program can write, so
    /// it is not believed either.
    const fn ahead(&self) -> u64 {
        let len = self.wr.wrapping_sub(self.rd);
        if len > SIZE { 0 } else { len }
    }

    fn check(&self, wr: u64) -> Result<u64, Breach> {
        if wr.wrapping_sub(self.rd) > SIZE { Err(Breach::Position) } else { Ok(wr) }
    }

    /// Returns how many of `len` bytes that were just peeked from the kernel's stream are data: others are bells.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn limit(&self, dir: &Direction, len: u64) -> Result<u64, Breach> {
        Ok(self.rest(dir)?.map_or(len, |(k, _)| k.min(len)))
    }

    /// Returns how many of `len` bytes, which wait in the kernel's stream and were just seen, are bells.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn bells(&self, dir: &Direction, len: u64) -> Result<u64, Breach> {
        self.limit(dir, len)
    }

    /// Returns how many bells to take before somebody else may read who knows nothing of rings: `None` as long as the
    /// sender, who was asked to return, has not done so ([`crate::Sender::switch_back`]).
    ///
    /// # Errors
    /// [`Breach`], also if the sender had gone back to the kernel before, and there are bytes in the ring before that:
    /// these can't be put before what it has sent since.
    pub fn bells_to_leave(&self, dir: &Direction) -> Result<Option<u64>, Breach> {
        let epoch = self.epoch_of(dir);
        match (self.is_ring(), epoch.wrapping_sub(self.epoch)) {
            (false, 0) => Ok(Some(0)),
            (false, 1) | (true, 0) => Ok(None),
            (true, 1) => match self.rest(dir)? {
                Some((bells, 0)) => Ok(Some(bells)),
                _ => Err(Breach::Position),
            },
            (false, 2) => {
                // The sender had switched to the ring, unseen, and back.
                let [(to_ring, _), (back, r)] =
                    [1, 2].map(|n| self.switch_to(dir, self.epoch.wrapping_add(n)));
                match (to_ring.checked_sub(self.k), back.checked_sub(to_ring)) {
                    _ if r != self.rd => Err(Breach::Position),
                    // Bells come only after all before them was taken.
                    (Some(0), Some(bells)) => Ok(Some(bells)),
                    (Some(_), Some(0)) => Ok(Some(0)),
                    _ => Err(Breach::Position),
                }
            }
            _ => Err(Breach::Epoch),
        }
    }

    /// Notes bytes taken from the kernel's stream, data or bells.
    pub fn took(&mut self, dir: &Direction, bytes: u64) {
        self.k = self.k.wrapping_add(bytes);
        dir.set_rx_k(self.k);
    }

    /// Copies up to `len` bytes out of the ring, at most as many as [`Self::step`] said, from `skip` on; they stay
    /// there.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`.
    pub unsafe fn peek(&self, link: &Link, skip: u64, to: *mut u8, len: usize) -> usize {
        let len = (len as u64).min(self.ahead().saturating_sub(skip)) as usize;
        // SAFETY: the caller promises the destination; `check` has bounded the length by the ring's.
        unsafe { link.get(false, self.rd.wrapping_add(skip), to, len) };
        len
    }

    /// Copies up to `len` bytes out of the ring, at most as many as [`Self::step`] said. Returns how many.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`.
    pub unsafe fn read(&mut self, link: &Link, to: *mut u8, len: usize) -> usize {
        let len = (len as u64).min(self.ahead()) as usize;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE);
            // SAFETY: the caller promises the destination; `check` has bounded the length by the ring's.
            unsafe { link.get(false, self.rd, to.add(done), piece) };
            self.skip(link.rx(), piece as u64);
            done += piece;
        }
        len
    }

    /// Takes bytes out of the ring without looking at them.
    pub fn skip(&mut self, dir: &Direction, bytes: u64) {
        self.rd = self.rd.wrapping_add(bytes.min(self.ahead()));
        dir.set_rd(self.rd);
    }

    /// Returns whether the sender waits for room and has enough now: then it must be woken by a bell.
    #[must_use]
    pub fn must_ring(&self, dir: &Direction) -> bool {
        dir.wr().wrapping_sub(self.rd) <= SIZE / 2 && dir.take_room_armed()
    }

    /// Returns the position in the kernel's stream up to which all was taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.k
    }

    /// Returns whether the sender has gone back to the kernel for good, and this reader has read all before that.
    #[must_use]
    pub fn is_done(&self, dir: &Direction) -> bool {
        (self.sealed.is_some() || dir.has_left()) && !self.is_ring() && self.epoch_of(dir) == self.epoch
    }
}
