//! CRC-32C (Castagnoli), as SCTP, iSCSI and SSE 4.2 compute it: reflected, initial value and final complement
//! all ones.

/// Reflected generator polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

/// A running CRC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc32c {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 >> 8 ^ TABLE[usize::from(self.0 as u8 ^ byte)];
        }
    }

    pub(crate) const fn finish(self) -> u32 {
        !self.0
    }
}

/// Returns the CRC of some bytes.
#[must_use]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::default();
    crc.add(bytes);
    crc.finish()
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// RFC 3720, B.4, and the CRC catalogue's check value.
    #[test]
    fn matches_published_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }
}
