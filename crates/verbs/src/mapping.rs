//! What is mapped in this process, and what may be done there.

/// What is mapped at some addresses (`proc(5)`).
#[derive(Debug)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub permissions: String,
    pub offset: u64,
    pub inode: u64,
    pub name: String,
}

impl Mapping {
    /// All of the program's, in their order.
    pub fn all() -> Vec<Self> {
        let lines = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        lines.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (permissions, offset, _device) = (words.next()?.into(), words.next()?, words.next()?);
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            permissions,
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: words.next()?.parse().ok()?,
            name: words.next().unwrap_or_default().trim_start().into(),
        })
    }
}

/// Whether all of this memory is mapped, so that each mapping is as is asked for.
pub fn are_all(start: usize, len: usize, mappings: &[Mapping], is_so: impl Fn(&Mapping) -> bool) -> bool {
    let Some(end) = start.checked_add(len) else { return false };
    let mut at = start;
    for mapping in mappings.iter().filter(|it| it.end > start && it.start < end) {
        if mapping.start > at || !is_so(mapping) {
            return false;
        }
        at = mapping.end;
    }
    at >= end
}

/// Whether the program itself may read all of this memory, or write to it. The device could do more: what it reads and writes by heeds
/// no protection of pages.
pub fn may_use(start: usize, len: usize, writes: bool) -> bool {
    let mappings = Mapping::all();
    // Where they are not to be seen, the program is believed.
    let may = |mapping: &Mapping| mapping.permissions.contains(if writes { 'w' } else { 'r' });
    len == 0 || mappings.is_empty() || are_all(start, len, &mappings, may)
}
