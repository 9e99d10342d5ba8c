//! The input of a fuzz target as moves.
#![allow(dead_code)] // not every target needs all of it

/// Derives a test's moves from the input, with zeroes after its end.
pub struct Moves<'a>(pub &'a [u8]);

impl Moves<'_> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes([(); 4].map(|()| self.byte()))
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }
}
