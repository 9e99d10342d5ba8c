//! The information block that makes a guest's kernel take a persistent memory device for one of type devdax,
//! with no configuration in the guest (linux/drivers/nvdimm/pfn.h, `struct nd_pfn_sb`).

/// Offset of the block in the file, bytes.
pub const AT: usize = 4096;
/// Bytes of the block.
pub const LEN: usize = 4096;
/// Page size of the guest's device, and of programs' mappings, bytes.
const PAGE: u64 = 4096;
/// `PFN_MODE_RAM`: the guest's kernel keeps its data about the pages in its own memory, where others can't
/// reach it.
const IN_RAM: u32 = 1;
/// The version of the block that has the size of pages, since Linux 5.5.
const VERSION: [u16; 2] = [1, 4];
/// Bytes that the kernel needs for each page (`struct page`).
const PAGE_DATA: u16 = 64;

/// Makes the block for a file of `bytes` bytes, whose data begin at `data`.
pub fn block(uuid: [u8; 16], bytes: u64, data: u64) -> [u8; LEN] {
    let mut block = [0; LEN];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        block[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(b"NVDIMM_DAX_INFO\0");
    put(&uuid);
    // UUID of the parent namespace, which has no label, and flags.
    put(&[0; 16 + 4]);
    VERSION.iter().for_each(|part| put(&part.to_le_bytes()));
    put(&data.to_le_bytes());
    put(&(bytes.saturating_sub(data) / PAGE).to_le_bytes());
    put(&IN_RAM.to_le_bytes());
    // Nothing is left out at the start or at the end.
    put(&[0; 4 + 4]);
    put(&(PAGE as u32).to_le_bytes());
    put(&(PAGE as u32).to_le_bytes());
    put(&PAGE_DATA.to_le_bytes());
    let sum = sum(&block);
    block[LEN - 8..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Computes the kernel's `nd_fletcher64` of a block whose sum is still zero.
fn sum(block: &[u8; LEN]) -> u64 {
    let (words, _) = block.as_chunks::<4>();
    let (low, high) = words.iter().fold((0_u32, 0_u32), |(low, high), word| {
        let low = low.wrapping_add(u32::from_le_bytes(*word));
        (low, high.wrapping_add(low))
    });
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stock kernels of Debian 12 and 13 accepted this block.
    #[test]
    fn it_is_what_kernels_take() {
        let block = block(std::array::from_fn(|i| i as u8), 64 << 20, 2 << 20);
        let mut expected = [0; LEN];
        expected[..16].copy_from_slice(b"NVDIMM_DAX_INFO\0");
        expected[16..32].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        expected[0x34] = 1;
        expected[0x36] = 4;
        expected[0x3a] = 0x20;
        expected[0x41] = 0x3e;
        expected[0x48] = 1;
        expected[0x55] = 0x10;
        expected[0x59] = 0x10;
        expected[0x5c] = 0x40;
        expected[0xff8..].copy_from_slice(&[0x84, 0xbc, 0x96, 0xfb, 0xd0, 0xfa, 0x26, 0xa6]);
        assert!(block == expected, "{:x?}", &block[..96]);
    }
}
