//! SIGBUS guard: a guest that removes its memory disables only itself.
//!
//! The creator of a memory file can truncate it while we have it mapped, and a huge page may be unavailable when it is
//! first touched. In both cases the access raises SIGBUS. The handler maps zero pages over the mapping, so that the
//! access completes, and raises the guest's [`FaultWord`]; its owner stops using the memory at the end of the burst.
//! Any other SIGBUS goes to the handler that was installed before.

use crate::FaultWord;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Mappings per block of the registry.
const SLOTS: usize = 128;

/// One guarded mapping. The handler may read it at any time, so it is written like a sequence lock: `version` is odd
/// while the other fields change.
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    fault: AtomicPtr<FaultWord>,
}

/// The registry grows by blocks that are never freed, so that the handler can walk it without a lock.
struct Block {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }
}

static REGISTRY: Block = Block::new();
/// Held while the registry changes; the handler does not take it.
static CHANGING: Mutex<()> = Mutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Walks the registry's slots.
fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut block = Some(&REGISTRY);
    std::iter::from_fn(move || {
        let this = block?;
        // SAFETY: `next` is null or a leaked block, fully built before it was published.
        block = unsafe { this.next.load(Ordering::Acquire).as_ref() };
        Some(this)
    })
    .flat_map(|b| b.slots.iter())
}

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            fault: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn write(&self, start: usize, len: usize, fault: *mut FaultWord) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.fault.store(fault, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    fn read(&self, addr: usize) -> Option<(usize, usize, *mut FaultWord)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let fault = self.fault.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let stable = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (stable && addr.wrapping_sub(start) < len).then_some((start, len, fault))
    }
}

/// Keeps a mapping guarded until it is dropped. Drop it before the mapping is unmapped.
#[derive(Debug)]
pub struct Guarded {
    start: usize,
    /// The word that the handler raises; the registry holds its address.
    _fault: Arc<FaultWord>,
}

impl Guarded {
    /// Guards `len` bytes mapped at `start`.
    ///
    /// # Errors
    /// If the handler can't be installed.
    ///
    /// # Safety
    /// The bytes must be the whole of one `mmap` of ordinary pages, so that the handler can map over it, and
    /// stay mapped until this is dropped.
    pub unsafe fn new(start: *mut u8, len: usize, fault: &Arc<FaultWord>) -> std::io::Result<Self> {
        install()?;
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let vacant = slots().find(|s| s.len.load(Ordering::Relaxed) == 0).unwrap_or_else(grow);
        vacant.write(start.addr(), len, Arc::as_ptr(fault).cast_mut());
        Ok(Self { start: start.addr(), _fault: fault.clone() })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots()
            .find(|s| s.len.load(Ordering::Relaxed) != 0 && s.start.load(Ordering::Relaxed) == self.start)
        {
            slot.write(0, 0, ptr::null_mut());
        }
    }
}

/// Appends a block. The caller must hold `CHANGING`.
fn grow() -> &'static Slot {
    let block: &'static mut Block = Box::leak(Box::new(Block::new()));
    let mut last = &REGISTRY;
    // SAFETY: as in `slots`.
    while let Some(next) = unsafe { last.next.load(Ordering::Acquire).as_ref() } {
        last = next;
    }
    last.next.store(block, Ordering::Release);
    &block.slots[0]
}

/// Installs the handler, once per process.
fn install() -> std::io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    let mut old = MaybeUninit::uninit();
    // SAFETY: only reads the current action; `old` has room for it.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), old.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded and filled it. It is stored before the handler can run.
    PREVIOUS.get_or_init(|| unsafe { old.assume_init() });
    // SAFETY: all-zero is a valid sigaction (no flags, empty mask).
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = on_sigbus as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `new` is a complete action whose handler is async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    *done = true;
    Ok(())
}

/// Handles SIGBUS, with only atomics and one system call, and without allocation; preserves errno.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo (SA_SIGINFO).
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A code above zero is a fault, not somebody's kill(2).
    if code > 0
        && let Some((start, len, fault)) = slots().find_map(|s| s.read(addr))
    {
        // SAFETY: errno is this thread's.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: replaces one whole mapping of ours by zero pages. The thread that faulted is using it, so it has not
        // been unmapped, and every other user only copies bytes.
        let zeros = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(start),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: as above; and `Guarded` keeps the word as long as its slot.
        unsafe {
            *libc::__errno_location() = errno;
            (*fault).raise(FaultWord::BUS);
        }
        if zeros != libc::MAP_FAILED {
            return;
        }
    }
    chain(signal, info, context);
}

/// Does what would have happened without this handler: calls the previous one, or restores the default
/// effect.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is repeated on return and then has its default effect; the kernel never ignores a fault.
            // SAFETY: all-zero is the default action.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the kernel was told to call this address with these arguments.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above, for a handler without SA_SIGINFO.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{Region, RegionSpec, Regions, Resolver, gather, scatter};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const LEN: u64 = 0x4000;

    struct Guest {
        file: File,
        fault: Arc<FaultWord>,
        memory: Resolver,
    }

    impl Guest {
        fn new() -> Self {
            let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
            file.set_len(LEN).unwrap();
            let fault = Arc::new(FaultWord::new());
            let spec = RegionSpec { gpa: 0, len: LEN, user: 0, offset: 0 };
            let mut regions = Regions::default();
            regions.insert(Region::map(&spec, &file, &fault, &Arc::default()).unwrap()).unwrap();
            // SAFETY: the segments below are dropped before it.
            let memory = unsafe { Resolver::new(Arc::new(regions)) }.unwrap();
            Self { file, fault, memory }
        }

        /// Writes a byte to each page, and reads it back.
        fn touch(&mut self) -> Vec<u8> {
            let mut segments = Vec::new();
            self.memory.resolve(0, LEN as u32, 1, &mut segments).unwrap();
            let mut bytes = vec![0; LEN as usize];
            gather(&segments, 0, &mut bytes);
            for page in 0..4 {
                scatter(&[1], &segments, page * 0x1000);
            }
            gather(&segments, 0, &mut bytes);
            bytes.into_iter().step_by(0x1000).collect()
        }
    }

    #[test]
    fn memory_that_goes_away_raises_the_fault_of_its_guest_alone() {
        // There are more of them than fit one block of the registry.
        let mut guests: Vec<Guest> = (0..SLOTS + 10).map(|_| Guest::new()).collect();
        for i in [3, SLOTS + 5] {
            assert_eq!(guests[i].touch(), [1; 4]);
            guests[i].file.set_len(0x1000).unwrap();
            assert_eq!(guests[i].fault.get(), None);
            assert_eq!(guests[i].touch(), [1; 4], "zero pages take what is written");
            assert_eq!(guests[i].fault.get(), Some(FaultWord::BUS));
        }
        let faults = guests.iter().filter(|g| g.fault.get().is_some()).count();
        assert_eq!(faults, 2);
        // The registry reuses slots.
        guests.truncate(1);
        let mut again = Guest::new();
        again.file.set_len(0).unwrap();
        again.touch();
        assert_eq!(again.fault.get(), Some(FaultWord::BUS));
        assert_eq!(guests[0].fault.get(), None);
    }

    #[test]
    fn a_fault_elsewhere_still_ends_the_process() {
        const CHILD: &str = "MEM_TEST_BUS_ERROR";
        if std::env::var_os(CHILD).is_some() {
            let _guarded = Guest::new();
            let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
            // SAFETY: a new mapping of an empty file, made to fault.
            unsafe {
                let read = rustix::mm::ProtFlags::READ;
                let shared = rustix::mm::MapFlags::SHARED;
                let at = rustix::mm::mmap(ptr::null_mut(), 0x1000, read, shared, &file, 0).unwrap();
                at.cast::<u8>().read_volatile();
            }
            unreachable!("read what isn't there");
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "guard::tests::a_fault_elsewhere_still_ends_the_process"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}
