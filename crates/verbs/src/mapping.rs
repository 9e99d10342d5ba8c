//! What is mapped in this process, and what may be done there.

use std::fs::File;
use std::io::{BufRead, BufReader};

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

/// Whether each mapping of this memory is as is asked for, by what `/proc/self/smaps` alone says (`proc_pid_smaps(5)`): its
/// `VmFlags`, and its protection key, 0 where it has none. It is read no further than that memory: the kernel walks through
/// the pages of what it tells of.
pub fn are_all_flagged(start: usize, len: usize, is_so: impl Fn(&str, u32) -> bool) -> bool {
    let Ok(file) = File::open("/proc/self/smaps") else { return false };
    let (mut is_its, mut key) = (false, 0);
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        if let Some(mapping) = Mapping::parse(&line) {
            if mapping.start >= start.saturating_add(len) {
                break;
            }
            (is_its, key) = (mapping.end > start, 0);
        } else if let Some(number) = line.strip_prefix("ProtectionKey:") {
            key = number.trim().parse().unwrap_or(u32::MAX);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && is_its
            && !is_so(flags, key)
        {
            return false;
        }
    }
    true
}

/// Whether the kernel has pages of the process pinned for long, as of buffers registered with `io_uring`: it does not say
/// which.
pub fn has_pinned_pages() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_some_and(|size| size.split_ascii_whitespace().next() != Some("0"))
}

/// Whether pages at this address are placed by a policy of their own (`mbind(2)`).
pub fn has_policy(address: usize) -> bool {
    /// `MPOL_F_ADDR`.
    const BY_ADDRESS: libc::c_ulong = 2;
    /// `MPOL_DEFAULT`: the mapping has none.
    const DEFAULT: libc::c_int = 0;
    let mut policy = DEFAULT;
    let none = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: a place for a number, and none for nodes; the address is looked up only.
    let said = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, none, 0_usize, address, BY_ADDRESS)
    };
    // Who may not ask can't have set one.
    said == 0 && policy != DEFAULT
}

/// Whether the program itself may read all of this memory, or write to it. The device could do more: what it reads and writes by heeds
/// no protection of pages.
pub fn may_use(start: usize, len: usize, writes: bool) -> bool {
    let mappings = Mapping::all();
    // Where they are not to be seen, the program is believed.
    let may = |mapping: &Mapping| mapping.permissions.contains(if writes { 'w' } else { 'r' });
    len == 0 || mappings.is_empty() || are_all(start, len, &mappings, may)
}
