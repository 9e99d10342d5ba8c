//! The mappings of this process, and their permissions.

use std::ffi::CStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;

/// A mapping of a range of addresses (`proc(5)`).
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

/// `PROCMAP_QUERY` of `linux/fs.h`.
const QUERY: u32 = 0xC068_6611;
/// Asks for the mapping at an address, or the next one.
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 0x1;
const WRITABLE: u64 = 0x2;
const EXECUTABLE: u64 = 0x4;
const SHARED: u64 = 0x8;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

impl Mapping {
    /// Returns the mappings that overlap this memory, in order. From Linux 6.11 on, it asks the kernel for only those.
    pub fn within(start: usize, len: usize) -> Vec<Self> {
        let end = start.saturating_add(len);
        Self::queried(start, end).unwrap_or_else(|| {
            Self::all().into_iter().filter(|it| it.end > start && it.start < end).collect()
        })
    }

    /// Returns the mappings in a range with queries; `None` if the kernel does not support them.
    fn queried(start: usize, end: usize) -> Option<Vec<Self>> {
        let file = File::open("/proc/self/maps").ok()?;
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            match Self::query(&file, at) {
                Ok(mapping) if mapping.start < end => {
                    at = mapping.end;
                    found.push(mapping);
                }
                Ok(_) => break,
                Err(libc::ENOENT) => break,
                Err(_) => return None,
            }
        }
        Some(found)
    }

    /// Returns the mapping at this address, or the next one.
    fn query(maps: &File, address: usize) -> Result<Self, i32> {
        let mut name = [0_u8; 256];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: COVERING_OR_NEXT,
            address: address as u64,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the kernel writes to the query, and a name no longer than `name`.
        if unsafe { libc::ioctl(maps.as_raw_fd(), QUERY as _, &raw mut query) } != 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        let letters =
            [(READABLE, 'r', '-'), (WRITABLE, 'w', '-'), (EXECUTABLE, 'x', '-'), (SHARED, 's', 'p')];
        let letter = |(flag, set, unset)| if query.vma_flags & flag != 0 { set } else { unset };
        let name = if query.name_size == 0 { None } else { CStr::from_bytes_until_nul(&name).ok() };
        Ok(Self {
            start: query.start as usize,
            end: query.end as usize,
            permissions: letters.map(letter).iter().collect(),
            offset: query.offset,
            inode: query.inode,
            name: name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        })
    }
}

/// Is true if all of this memory is mapped, and each mapping fulfils the condition.
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

/// Is true if each mapping of this memory fulfils a condition on its `VmFlags` and its protection key (0 if it has
/// none), which only `/proc/self/smaps` reports (`proc_pid_smaps(5)`). Reads the file no further than that memory,
/// because the kernel walks through the pages of every mapping that it reports.
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

/// Is true if the kernel has pages of the process pinned for long, as for buffers registered with `io_uring`. The
/// kernel does not report which pages.
pub fn has_pinned_pages() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_some_and(|size| size.split_ascii_whitespace().next() != Some("0"))
}

/// Is true if pages at this address have their own placement policy (`mbind(2)`).
pub fn has_policy(address: usize) -> bool {
    /// `MPOL_F_ADDR`.
    const BY_ADDRESS: libc::c_ulong = 2;
    /// `MPOL_DEFAULT`: the mapping has no policy.
    const DEFAULT: libc::c_int = 0;
    let mut policy = DEFAULT;
    let none = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: room for a number, and none for nodes; the address is only looked up.
    let said = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut policy, none, 0_usize, address, BY_ADDRESS)
    };
    // A process that may not query a policy can't have set one.
    said == 0 && policy != DEFAULT
}

/// Is true if the program itself may read all of this memory, or write to it. The device's accesses ignore the
/// protection of pages, so this must be checked here.
pub fn may_use(start: usize, len: usize, writes: bool) -> bool {
    let may = |mapping: &Mapping| mapping.permissions.contains(if writes { 'w' } else { 'r' });
    // If the mappings can't be read, we trust the program.
    len == 0 || are_all(start, len, &Mapping::within(start, len), may) || Mapping::all().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_is_asked_for_is_what_its_list_says() {
        let on_heap = vec![0_u8; 1 << 20];
        let end = (&raw const on_heap) as usize;
        let all = Mapping::all();
        let told: Vec<_> = all.iter().filter(|it| it.start <= end && it.end > end).collect();
        let asked = Mapping::within(end, 1);
        assert_eq!(format!("{told:?}"), format!("{:?}", asked.iter().collect::<Vec<_>>()));
        assert!(may_use(on_heap.as_ptr() as usize, on_heap.len(), true));
        let code = may_use as *const () as usize;
        assert!(may_use(code, 1, false) && !may_use(code, 1, true));
        assert!(!may_use(0, 4096, false));
        assert!(!may_use(usize::MAX - 4095, 4096, false));
    }
}
