//! Ports wider than 64 bits.

/// A port wider than 64 bits. Byte `k` of it is in bits `[8k +: 8]`, like byte `k` of a packet in a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits<'a> {
    words: &'a [u32],
    width: usize,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(words: &'a [u32], width: usize) -> Self {
        Self { words, width }
    }

    /// Returns the words, least significant first. Bits above the port's width are zero.
    pub fn words(&self) -> &'a [u32] {
        self.words
    }

    /// Returns the `width` bits (at most 128) from bit `low` on.
    ///
    /// # Panics
    /// If the port doesn't have them.
    pub fn get(&self, low: usize, width: usize) -> u128 {
        check(self.width, low, width);
        let mut value = 0;
        let mut done = 0;
        while done < width {
            let bit = low + done;
            let word = u128::from(self.words[bit / 32] >> (bit % 32));
            value |= word << done;
            done += 32 - bit % 32;
        }
        value & mask(width)
    }

    /// Copies the bytes from byte `first` on.
    ///
    /// # Panics
    /// If the port doesn't have that many.
    pub fn copy_bytes(&self, first: usize, into: &mut [u8]) {
        check(self.width, 8 * first, 8 * into.len());
        for (k, byte) in into.iter_mut().enumerate() {
            *byte = self.words[(first + k) / 4].to_le_bytes()[(first + k) % 4];
        }
    }
}

#[derive(Debug)]
pub struct BitsMut<'a> {
    words: &'a mut [u32],
    width: usize,
}

impl<'a> BitsMut<'a> {
    pub(crate) fn new(words: &'a mut [u32], width: usize) -> Self {
        Self { words, width }
    }

    /// Sets all words, least significant first.
    ///
    /// # Panics
    /// If the port has a different number of words, or a bit above its width is set.
    pub fn copy_words(&mut self, words: &[u32]) {
        let used = self.width - 32 * (self.words.len() - 1);
        assert!(u128::from(words[words.len() - 1]) <= mask(used), "more bits than the port's {}", self.width);
        self.words.copy_from_slice(words);
    }

    /// Sets the `width` bits (at most 128) from bit `low` on.
    ///
    /// # Panics
    /// If the port doesn't have them, or `value` has more.
    pub fn set(&mut self, low: usize, width: usize, value: u128) {
        check(self.width, low, width);
        assert!(value <= mask(width), "{value:#x} has more than {width} bits");
        let mut done = 0;
        while done < width {
            let bit = low + done;
            let here = (32 - bit % 32).min(width - done);
            // At most 32 bits of either are left.
            let field = (mask(here) as u32) << (bit % 32);
            let part = ((value >> done) as u32) << (bit % 32);
            self.words[bit / 32] = self.words[bit / 32] & !field | part & field;
            done += here;
        }
    }

    /// Sets the bytes from byte `first` on.
    ///
    /// # Panics
    /// If the port doesn't have that many.
    pub fn set_bytes(&mut self, first: usize, bytes: &[u8]) {
        check(self.width, 8 * first, 8 * bytes.len());
        for (k, byte) in bytes.iter().enumerate() {
            let shift = (first + k) % 4 * 8;
            let word = &mut self.words[(first + k) / 4];
            *word = *word & !(0xff << shift) | u32::from(*byte) << shift;
        }
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }
}

fn check(port: usize, low: usize, width: usize) {
    assert!(low + width <= port, "bits {low} +: {width} of a port of {port}");
}

fn mask(width: usize) -> u128 {
    assert!(width <= 128, "{width} bits at once");
    if width == 128 { u128::MAX } else { (1 << width) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_across_words_are_read_as_written_and_leave_the_rest_alone() {
        for (low, width) in [(0, 1), (31, 2), (5, 64), (33, 128), (60, 100), (0, 128), (164, 8)] {
            let mut words = [0xa5a5_a5a5, 0x5a5a_5a5a, 0xdead_beef, 0x0123_4567, 0x89ab_cdef, 0xfff];
            let before = words;
            let value = 0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0 & mask(width);
            BitsMut::new(&mut words, 172).set(low, width, value);
            let after = Bits::new(&words, 172);
            assert_eq!(after.get(low, width), value);
            for bit in (0..172).filter(|bit| !(low..low + width).contains(bit)) {
                assert_eq!(after.get(bit, 1), Bits::new(&before, 172).get(bit, 1), "bit {bit}");
            }
        }
    }

    #[test]
    fn byte_k_is_in_bits_8k() {
        let mut words = [0; 3];
        let mut bits = BitsMut::new(&mut words, 96);
        bits.set_bytes(3, &[0x11, 0x22]);
        assert_eq!(words, [0x1100_0000, 0x22, 0]);
        let mut bytes = [0; 4];
        Bits::new(&words, 96).copy_bytes(2, &mut bytes);
        assert_eq!(bytes, [0, 0x11, 0x22, 0]);
    }

    #[test]
    #[should_panic(expected = "bits 90 +: 8 of a port of 96")]
    fn a_field_beyond_the_port_is_refused() {
        Bits::new(&[0; 3], 96).get(90, 8);
    }

    #[test]
    #[should_panic(expected = "more bits than the port's 70")]
    fn words_beyond_the_width_are_refused() {
        BitsMut::new(&mut [0; 3], 70).copy_words(&[0, 0, 0x40]);
    }
}
