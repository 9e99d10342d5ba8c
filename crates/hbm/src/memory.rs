//! The stored data: pages that are allocated when written.

const PAGE: usize = 4096; // bytes

/// Bytes of a channel. Untouched pages are zero, and cost only a pointer each.
pub(crate) struct Memory {
    pages: Vec<Option<Box<[u8; PAGE]>>>,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let count = bytes.div_ceil(PAGE as u64) as usize;
        Self { pages: std::iter::repeat_with(|| None).take(count).collect() }
    }

    /// Returns the 32 bytes at `addr`, which is a multiple of 32.
    pub(crate) fn read(&self, addr: u64) -> [u8; 32] {
        let at = addr as usize % PAGE;
        let page = self.pages.get(addr as usize / PAGE).and_then(Option::as_deref);
        page.and_then(|page| page[at..].first_chunk()).copied().unwrap_or([0; 32])
    }

    /// Stores 32 bytes at `addr`, which is a multiple of 32.
    pub(crate) fn write(&mut self, addr: u64, data: &[u8; 32]) {
        let at = addr as usize % PAGE;
        if let Some(page) = self.pages.get_mut(addr as usize / PAGE) {
            page.get_or_insert_with(|| Box::new([0; PAGE]))[at..at + 32].copy_from_slice(data);
        }
    }
}
