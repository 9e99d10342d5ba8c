//! The sender of a direction. Its own state lies where the peer can't write.

use crate::Breach;
use crate::layout::{Bell, Direction, Link, SIZE, SMALL};
use std::sync::atomic::{Ordering, fence};

/// Bytes after which a long copy is shown to the reader, so that both copy at the same time.
const PIECE: usize = 32 << 10;

/// The state of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    epoch: u32,
    wr: u64,
    /// The reader's position, as last seen.
    rd: u64,
    /// Position in the kernel's stream of the last switch to the ring.
    k: u64,
    /// Whether bytes go by the large ring.
    is_large: bool,
    /// The position in the ring from which bytes are still to be sent by the kernel.
    unsent: Option<u64>,
}

impl Sender {
    /// Returns whether bytes go by the ring.
    #[must_use]
    pub const fn is_ring(&self) -> bool {
        self.epoch % 2 == 1
    }

    /// Returns whether bytes of the ring are still to be sent by the kernel, before all others.
    #[must_use]
    pub const fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Returns the bytes ever written to the ring.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.wr
    }

    /// Returns whether the sender may switch to the ring: the reader follows, and has seen the switch before. Back it
    /// may switch at any time.
    #[must_use]
    pub fn may_switch(&self, dir: &Direction) -> bool {
        dir.is_ready() && dir.rx_epoch() == self.epoch && !self.has_unsent()
    }

    /// Returns whether the reader has seen the last switch. A reader on another host that has not must not get bytes by
    /// the kernel that come after the next one: it would take them for those before the last.
    #[must_use]
    pub fn is_seen(&self, dir: &Direction) -> bool {
        dir.rx_epoch() == self.epoch
    }

    /// Returns whether the daemon, which carries the ring's bytes to another host, must be told.
    #[must_use]
    pub fn must_tell(&self, dir: &Direction) -> bool {
        fence(Ordering::SeqCst);
        dir.is_armed() && dir.take_armed().is_some()
    }

    /// Switches to the other way; `k` bytes were sent by the kernel so far, bells included.
    pub fn switch(&mut self, dir: &Direction, k: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.k = k;
        dir.log(self.epoch, k, self.wr);
    }

    /// Switches back to the kernel for a reader that reads the ring no more: what it has not read is to be sent again
    /// ([`Self::unsent`]). The reader need not have seen the last switch: then it is still before it, and has read
    /// nothing since.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn switch_back(&mut self, dir: &Direction, k: u64) -> Result<(), Breach> {
        let rd = self.look(dir)?;
        self.unsent = (rd != self.wr).then_some(rd);
        self.epoch = self.epoch.wrapping_add(1);
        self.k = k;
        dir.log(self.epoch, k, rd);
        Ok(())
    }

    fn look(&mut self, dir: &Direction) -> Result<u64, Breach> {
        let rd = dir.rd();
        if rd.wrapping_sub(self.rd) > self.wr.wrapping_sub(self.rd) {
            return Err(Breach::Position);
        }
        self.rd = rd;
        Ok(rd)
    }

    /// Returns how many bytes there is room for.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn room(&mut self, dir: &Direction) -> Result<u64, Breach> {
        Ok(SIZE.saturating_sub(self.wr.wrapping_sub(self.look(dir)?)))
    }

    /// Returns whether the reader is behind: it had not read all when this end looked last.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn is_ahead(&mut self, dir: &Direction) -> Result<bool, Breach> {
        Ok(self.look(dir)? != self.wr)
    }

    /// Writes up to `len` bytes into the ring. Returns how many.
    ///
    /// # Errors
    /// [`Breach`].
    ///
    /// # Safety
    /// `len` bytes can be read at `from`.
    pub unsafe fn write(&mut self, link: &Link, from: *const u8, len: usize) -> Result<usize, Breach> {
        let dir = link.tx();
        let mut done = 0;
        while done < len {
            self.is_large = self.is_large || dir.has_grown();
            // The reader's line of the cache is read only if one's copy says that the ring is full.
            let needed = ((len - done) as u64).min(PIECE as u64);
            let size = if self.is_large { SIZE } else { SMALL };
            let mut room = size.saturating_sub(self.wr.wrapping_sub(self.rd));
            if room < needed {
                room = size.saturating_sub(self.wr.wrapping_sub(self.look(dir)?));
            }
            if room < needed && !self.is_large {
                // The reader sees that before the position.
                dir.grow(self.wr);
                self.is_large = true;
                room = self.room(dir)?;
            }
            let piece = (len - done).min(PIECE).min(room as usize);
            if piece == 0 {
                break;
            }
            // SAFETY: `done + piece` is at most `len`, for which the caller promises; a piece is smaller than the ring.
            unsafe { link.put(self.wr, from.add(done), piece) };
            self.wr = self.wr.wrapping_add(piece as u64);
            dir.set_wr(self.wr);
            done += piece;
        }
        Ok(done)
    }

    /// Returns the bell by which the reader must be woken. To be called after writing, and after a switch to the ring.
    #[must_use]
    pub fn must_ring(&self, dir: &Direction) -> Option<Bell> {
        // Written bytes must be visible before it is asked whether the reader sleeps.
        fence(Ordering::SeqCst);
        // A reader that has not taken the kernel's bytes before the switch has these to wake it. It looks at the ring
        // when it has. So no bell comes before bytes that somebody may have to read without knowing of bells.
        if dir.is_armed() && dir.rx_k() >= self.k { dir.take_armed() } else { None }
    }

    /// Copies bytes that are still to be sent by the kernel, up to `len`. Returns how many.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`.
    pub unsafe fn unsent(&self, link: &Link, to: *mut u8, len: usize) -> usize {
        let Some(from) = self.unsent else { return 0 };
        let len = len.min(self.wr.wrapping_sub(from).min(SIZE) as usize);
        // SAFETY: the caller promises the destination. `look` has checked that no more is in the ring than it holds.
        unsafe { link.get(true, from, to, len) };
        len
    }

    /// Notes that so many of [`Self::unsent`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.map(|from| from.wrapping_add(bytes as u64)).filter(|from| *from < self.wr);
    }
}
