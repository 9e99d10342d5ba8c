//! The files of windows. They are made, given to VMMs, kept for VMs that run while the daemon is restarted,
//! and removed.

use super::{AnyError, dax};
use control::{WINDOW_DIR, WindowOf, WindowSpec};
use hca::{Notes, Window, WindowError};
use mem::FaultWord;
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags, fallocate, fstat, fstatfs, ftruncate, statx};
use sockets::{Place, Sockets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{Memory, MemoryError, Uuid, WindowHeader, WindowKind, window};

/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: i64 = 0x9584_58f6;
/// Bytes of a window's beginning: the part in front of its data, and the header. A whole number of huge
/// pages.
const BEGINNING: u64 = 2 * window::DATA;
/// The largest page size that a window may have, bytes.
const LARGEST_PAGE: u64 = 2 << 20;

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(
        "{}: it has {has} bytes, and `window_mb` says {wanted}; stop the VMs that have it, then remove it",
        path.display()
    )]
    Size { path: PathBuf, has: u64, wanted: u64 },
    #[error(
        "{}: its file system has room for {free} bytes more, and a window takes {wanted}; make it larger (mount -o \
         remount,size=...)",
        path.display()
    )]
    NoRoom { path: PathBuf, free: u64, wanted: u64 },
    #[error(
        "{}: its pages have {page} bytes, and those of a window 2 MiB at most; mount -o pagesize=2M",
        path.display()
    )]
    HugePages { path: PathBuf, page: u64 },
    #[error("{}: there are too few free huge pages for {wanted} bytes (/proc/sys/vm/nr_hugepages)", path.display())]
    NoHugePages { path: PathBuf, wanted: u64 },
    #[error("{}: {source}", path.display())]
    Window { path: PathBuf, source: WindowError },
    #[error("{}: it can't be noted whose its pages are: {source} (`windows` in the run-dir)", path.display())]
    Notes { path: PathBuf, source: rustix::io::Errno },
    #[error("{}: {source}", path.display())]
    Memory { path: PathBuf, source: MemoryError },
}

#[derive(Debug)]
pub struct OpenWindow {
    /// The memory, as devices use it.
    pub window: Arc<Window>,
    /// Device and inode number of its file.
    pub file: (u64, u64),
    spec: WindowSpec,
    /// Copy of the file, to write its beginning again.
    copy: OwnedFd,
}

impl OpenWindow {
    pub fn name(&self) -> String {
        self.spec.name()
    }

    pub fn is_removed(&self) -> bool {
        fstat(&self.copy).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Writes again what a guest's kernel and its library look for when they start. Programs may have
    /// overwritten it, and the VMM may have made the file longer.
    pub fn renew(&self) {
        self.window.cut_excess();
        if let Err(e) = write_beginning(&self.copy, &self.spec) {
            tracing::warn!("{e}");
        }
    }
}

/// Knowledge about a window's file.
#[derive(Debug, Default)]
struct Known {
    /// Size in bytes, if this daemon opened it.
    bytes: Option<u64>,
    open: Weak<OpenWindow>,
}

/// The windows' files, and notes about whose their pages are.
#[derive(Debug, Default)]
pub struct Windows {
    all: Mutex<BTreeMap<PathBuf, Known>>,
    notes: Option<Arc<Notes>>,
}

impl Windows {
    /// Takes the files that were found in a run-dir ([`make_directories`]), and opens the notes while the
    /// daemon may open files.
    pub fn new(found: Vec<PathBuf>, run_dir: &Path) -> Self {
        let known = |path| (path, Known::default());
        let notes = Notes::open(run_dir).map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "nobody knows after a restart whose pages of windows are");
        });
        Self { all: Mutex::new(found.into_iter().map(known).collect()), notes: notes.ok() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an existing window, which a VM may have, or makes a new one. `owner`: the VMM's user and group.
    ///
    /// # Errors
    /// There is no memory for it, or the path has something else.
    pub fn open(
        &self,
        spec: &WindowSpec,
        owner: Option<(u32, u32)>,
        sockets: &dyn Sockets,
    ) -> Result<Arc<OpenWindow>, AnyError> {
        let mut all = self.lock();
        let known = all.entry(spec.path.clone()).or_default();
        let place = Place { path: spec.path.clone(), owner, mode: spec.mode };
        let mut file = sockets.memory(&place, false)?;
        let (mut id, size) = identify(&file)?;
        // Ignores excess length, so that whoever made the file longer keeps nobody out: this daemon knows its
        // right length.
        let is_it =
            |open: &Arc<OpenWindow>| open.file == id && open.spec.bytes == spec.bytes && size >= spec.bytes;
        if let Some(open) = known.open.upgrade().filter(is_it) {
            open.window.cut_excess();
            return Ok(open);
        }
        // This daemon made the file with the old size, and the configuration now wants a different one.
        if size != spec.bytes && known.bytes == Some(size) {
            sockets.remove_memory(&spec.path)?;
            file = sockets.memory(&place, false)?;
            id = identify(&file)?.0;
        } else if size != 0 && size != spec.bytes {
            return Err(Problem::Size { path: spec.path.clone(), has: size, wanted: spec.bytes }.into());
        }
        let made = prepare(&file, spec).and_then(|()| map(file.try_clone()?, spec, self.notes.as_ref()));
        let window = match made {
            Ok(window) => window,
            // An existing window stays as it was.
            Err(e) if size == spec.bytes => return Err(e),
            Err(e) => {
                sockets.remove_memory(&spec.path)?;
                return Err(e);
            }
        };
        let open = Arc::new(OpenWindow { window, file: id, spec: spec.clone(), copy: file });
        *known = Known { bytes: Some(spec.bytes), open: Arc::downgrade(&open) };
        Ok(open)
    }

    /// Gives a window to a new VMM.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn give(
        spec: &WindowSpec,
        owner: Option<(u32, u32)>,
        sockets: &dyn Sockets,
    ) -> Result<(), sockets::Error> {
        let place = Place { path: spec.path.clone(), owner, mode: spec.mode };
        sockets.memory(&place, false).map(drop)
    }

    /// Removes all windows except `wanted`.
    pub fn keep(&self, wanted: &BTreeSet<PathBuf>, sockets: &dyn Sockets) {
        self.lock().retain(|path, _| {
            wanted.contains(path) || {
                let removed = sockets.remove_memory(path);
                match &removed {
                    Ok(()) => {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        self.notes.iter().for_each(|notes| notes.forget(&name));
                        tracing::info!("window removed: {}", path.display());
                    }
                    Err(e) => tracing::warn!("a window that nobody has any more can't be removed: {e}"),
                }
                removed.is_err()
            }
        });
    }
}

/// Returns device and inode number of a file, and its size.
fn identify(file: &OwnedFd) -> io::Result<((u64, u64), u64)> {
    let stat = fstat(file)?;
    Ok(((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).unwrap_or(0)))
}

/// Gives a file its size, if there is memory for it, and writes its beginning.
fn prepare(file: &OwnedFd, spec: &WindowSpec) -> Result<(), AnyError> {
    let (path, wanted) = (spec.path.clone(), spec.bytes);
    let (of, stat) = (fstatfs(file)?, fstat(file)?);
    let page = u64::try_from(of.f_bsize).unwrap_or(0);
    let is_huge = of.f_type == HUGETLBFS;
    if page > LARGEST_PAGE {
        return Err(Problem::HugePages { path, page }.into());
    }
    // Huge pages are reserved when they are mapped. A tmpfs without a limit has 0 blocks.
    let has = 512 * u64::try_from(stat.st_blocks).unwrap_or(0);
    let free = of.f_bavail.saturating_mul(page).saturating_add(has);
    if !is_huge && of.f_blocks > 0 && free < wanted {
        return Err(Problem::NoRoom { path, free, wanted }.into());
    }
    if stat.st_size == 0 {
        ftruncate(file, wanted)?;
    }
    // A VM that runs has read the same content.
    write_beginning(file, spec)?;
    if stat.st_size == 0 && !is_huge {
        // A tmpfs may give a huge page to the header, and the rest of that page would count as a program's.
        let behind = window::DATA + uverbs::PAGE;
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, behind, wanted - behind)?;
    }
    Ok(())
}

/// Writes the block by which a guest's kernel recognises a window, and the header by which its library does.
fn write_beginning(file: &OwnedFd, spec: &WindowSpec) -> Result<(), AnyError> {
    let (kind, name) = owner(spec);
    let (uuid, len) = (uuid(file, spec)?, spec.bytes - window::DATA);
    let header = WindowHeader { kind, uuid, len, port: window::PORT, name: name.to_owned() };
    // The VMM may take the memory away at any time.
    let lacking = |e| lacking(e, spec, fstatfs(file).is_ok_and(|of| of.f_type == HUGETLBFS));
    let memory = Memory::open_window(file, 0, BEGINNING).map_err(lacking)?;
    let memory = memory.guarded(&Arc::new(FaultWord::new())).map_err(lacking)?;
    for (at, len) in [(dax::AT, dax::LEN), (window::DATA as usize, WindowHeader::BYTES)] {
        let start = at as u64 / uverbs::PAGE * uverbs::PAGE;
        memory
            .populate(start, ((at + len) as u64 - start).next_multiple_of(uverbs::PAGE))
            .map_err(lacking)?;
    }
    let _ = memory.write(dax::AT, &dax::block(uuid.0, spec.bytes, window::DATA));
    let _ = memory.write(window::DATA as usize, &header.to_bytes());
    Ok(())
}

/// Returns the owner of a window, for its header.
const fn owner(spec: &WindowSpec) -> (WindowKind, &String) {
    match &spec.of {
        WindowOf::Guest(name) => (WindowKind::Own, name),
        WindowOf::Trust(name) => (WindowKind::Common, name),
    }
}

/// Maps a file that was prepared.
fn map(file: OwnedFd, spec: &WindowSpec, notes: Option<&Arc<Notes>>) -> Result<Arc<Window>, AnyError> {
    let (kind, name) = owner(spec);
    let is_huge = fstatfs(&file)?.f_type == HUGETLBFS;
    let uuid = uuid(&file, spec)?;
    let noted = |notes: &Arc<Notes>| notes.of(&spec.name(), uuid, spec.bytes - window::DATA);
    let notes =
        notes.map(noted).transpose().map_err(|source| Problem::Notes { path: spec.path.clone(), source })?;
    let open = Window::open_noted(file, kind, uuid, name, notes).map_err(|e| match e {
        WindowError::Memory(e) => lacking(e, spec, is_huge),
        source => Problem::Window { path: spec.path.clone(), source }.into(),
    })?;
    // The VMM may have changed the size after it was checked.
    let has = window::DATA + window::FIRST + open.describe().len;
    if has == spec.bytes {
        Ok(open)
    } else {
        Err(Problem::Size { path: spec.path.clone(), has, wanted: spec.bytes }.into())
    }
}

fn lacking(source: MemoryError, spec: &WindowSpec, is_huge: bool) -> AnyError {
    let (path, wanted) = (spec.path.clone(), spec.bytes);
    match source {
        MemoryError::Kernel(rustix::io::Errno::NOMEM) if is_huge => Problem::NoHugePages { path, wanted },
        source => Problem::Memory { path, source },
    }
    .into()
}

/// Computes the UUID of a window. It is always the same for a file, and different for different files. It is
/// not read from the file, because the guest's administrator may write anything there.
fn uuid(file: &OwnedFd, spec: &WindowSpec) -> io::Result<Uuid> {
    let of = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    // FNV-1a of 128 bits is enough: forging the UUID gains nothing, because a program proves by other means
    // that it has the window.
    let (offset, prime) = (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, (1_u128 << 88) | 0x13b);
    let numbers = [of.stx_ino, u64::from(of.stx_dev_major), u64::from(of.stx_dev_minor)];
    let born = [of.stx_btime.tv_sec as u64, of.stx_btime.tv_nsec.into()];
    let name = spec.path.file_name().unwrap_or_default().as_encoded_bytes();
    let numbers = numbers.into_iter().chain(born).flat_map(u64::to_le_bytes);
    let hash = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(prime);
    let sum = numbers.chain(name.iter().copied()).fold(offset, hash);
    // RFC 9562: version 8, a custom format.
    let sum = sum & !(0xf << 76 | 0x3 << 62) | 8 << 76 | 0x2 << 62;
    Ok(Uuid(sum.to_be_bytes()))
}

/// Makes the directories for the sockets of verbs devices and for windows. Returns the windows that exist.
///
/// # Errors
/// The kernel refuses it.
pub fn make_directories(run_dir: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(run_dir)?;
    for dir in [control::RDMA_DIR, WINDOW_DIR, control::SOCKETS_DIR] {
        let dir = run_dir.join(dir);
        match std::fs::create_dir(&dir) {
            // Regardless of the umask, owners of files in it must be able to enter.
            Ok(()) => std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(run_dir.join(WINDOW_DIR))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    const MIB: u64 = 1 << 20;

    fn run_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(make_directories(dir.path()).unwrap().is_empty());
        dir
    }

    fn spec(dir: &Path, mb: u64) -> WindowSpec {
        WindowSpec {
            of: WindowOf::Guest("vm1".to_owned()),
            path: dir.join(WINDOW_DIR).join("c1"),
            bytes: mb * MIB,
            owner: None,
            mode: 0o660,
            migrates: false,
        }
    }

    fn inode(spec: &WindowSpec) -> u64 {
        std::fs::metadata(&spec.path).unwrap().ino()
    }

    #[test]
    fn the_helper_knows_where_windows_are() {
        assert_eq!(helper::WINDOWS, WINDOW_DIR);
        assert_eq!(helper::PORT, window::PORT);
    }

    #[test]
    fn a_window_has_what_the_guests_kernel_and_library_look_for() {
        let dir = run_dir();
        let spec = spec(dir.path(), 16);
        let open = Windows::default().open(&spec, None, &sockets::Here).unwrap();
        let file = std::fs::File::open(&spec.path).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (16 * MIB, 0o660));
        assert!(meta.blocks() * 512 < MIB, "it takes memory before it is used");
        let mut block = [0; dax::LEN];
        file.read_exact_at(&mut block, dax::AT as u64).unwrap();
        let uuid = open.window.uuid();
        assert!(block == dax::block(uuid.0, 16 * MIB, window::DATA));
        let mut header = [0; uverbs::WindowHeader::BYTES];
        file.read_exact_at(&mut header, window::DATA).unwrap();
        let header = uverbs::WindowHeader::from_bytes(&header).unwrap();
        assert_eq!((header.uuid, header.name.as_str(), header.len), (uuid, "vm1", 14 * MIB));
        assert_eq!(open.file, (meta.dev(), meta.ino()));
        assert!(!open.is_removed());
        std::fs::rename(&spec.path, dir.path().join("elsewhere")).unwrap();
        std::fs::write(&spec.path, "").unwrap();
        assert!(!open.is_removed(), "it is somewhere");
        std::fs::remove_file(dir.path().join("elsewhere")).unwrap();
        assert!(open.is_removed());
    }

    #[test]
    fn a_running_vm_keeps_its_window_over_a_restart() {
        let dir = run_dir();
        let spec = spec(dir.path(), 16);
        let first = Windows::default().open(&spec, None, &sockets::Here).unwrap();
        let (uuid, file) = (first.window.uuid(), first.file);
        drop(first);
        let heap = std::fs::File::options().write(true).open(&spec.path).unwrap();
        heap.write_all_at(b"precious", 10 * MIB).unwrap();
        // The guest's administrator may write to all of it.
        heap.write_all_at(&[0xff; dax::LEN], dax::AT as u64).unwrap();
        heap.write_all_at(&[0xff; 128], window::DATA).unwrap();
        let found = make_directories(dir.path()).unwrap();
        assert_eq!(found, std::slice::from_ref(&spec.path));
        let windows = Windows::new(found, dir.path());
        let again = windows.open(&spec, None, &sockets::Here).unwrap();
        assert_eq!((again.window.uuid(), again.file), (uuid, file));
        let bytes = std::fs::read(&spec.path).unwrap();
        assert_eq!(&bytes[10 * MIB as usize..][..8], b"precious");
        assert!(bytes[dax::AT..][..dax::LEN] == dax::block(uuid.0, 16 * MIB, window::DATA));
        // The same when the VM starts anew.
        heap.write_all_at(&[0xee; dax::LEN], dax::AT as u64).unwrap();
        heap.write_all_at(&[0xee; 128], window::DATA).unwrap();
        again.renew();
        assert!(std::fs::read(&spec.path).unwrap() == bytes);
        // The daemon survives if the VMM takes the memory away.
        heap.set_len(0).unwrap();
        again.renew();
        heap.set_len(16 * MIB).unwrap();
        again.renew();
        // A longer file does not let the VMM take others' memory, and does not keep the VMM out.
        for reopens in [false, true] {
            heap.set_len(17 * MIB).unwrap();
            if reopens {
                let same = windows.open(&spec, None, &sockets::Here).unwrap();
                assert!(Arc::ptr_eq(&again.window, &same.window));
            } else {
                again.renew();
            }
            assert_eq!(heap.metadata().unwrap().len(), 16 * MIB);
        }
        // Two devices have the same window.
        let other = windows.open(&spec, None, &sockets::Here).unwrap();
        assert!(Arc::ptr_eq(&again.window, &other.window));
    }

    #[test]
    fn another_size_is_another_file_unless_a_vm_may_have_it() {
        let dir = run_dir();
        let (small, large) = (spec(dir.path(), 16), spec(dir.path(), 32));
        let windows = Windows::default();
        let before = windows.open(&small, None, &sockets::Here).unwrap();
        let after = windows.open(&large, None, &sockets::Here).unwrap();
        assert!(before.file != after.file && before.window.uuid() != after.window.uuid());
        assert_eq!(std::fs::metadata(&large.path).unwrap().len(), 32 * MIB);
        let inode = inode(&large);
        let said = Windows::default().open(&small, None, &sockets::Here).unwrap_err().to_string();
        assert!(said.contains("has 33554432 bytes, and `window_mb` says 16777216"), "{said}");
        assert_eq!(self::inode(&large), inode);
    }

    /// The file is made longer between the check of its size and its mapping.
    #[test]
    fn a_window_never_has_more_than_was_asked_for() {
        let dir = run_dir();
        let spec = spec(dir.path(), 16);
        let file = std::fs::File::create_new(&spec.path).unwrap();
        let open = |mb: u64| {
            file.set_len(mb * MIB).unwrap();
            let ours = std::fs::File::options().read(true).write(true).open(&spec.path).unwrap();
            map(ours.into(), &spec, None).map(drop).map_err(|e| e.to_string())
        };
        assert!(open(16).is_ok());
        assert!(open(17).unwrap_err().contains("has 17825792 bytes, and `window_mb` says 16777216"));
    }

    #[test]
    fn a_window_that_has_no_room_leaves_no_file() {
        let dir = run_dir();
        let spec = spec(dir.path(), 1 << 30);
        let said = Windows::default().open(&spec, None, &sockets::Here).unwrap_err().to_string();
        assert!(said.contains("rdma/vm/c1: its file system has room for"), "{said}");
        assert!(!spec.path.exists());
    }

    #[test]
    fn what_nobody_wants_is_removed() {
        let dir = run_dir();
        let (kept, old) = (spec(dir.path(), 16), dir.path().join(WINDOW_DIR).join("old"));
        std::fs::write(&old, "").unwrap();
        let windows = Windows::new(make_directories(dir.path()).unwrap(), dir.path());
        let _open = windows.open(&kept, None, &sockets::Here).unwrap();
        windows.keep(&BTreeSet::from([kept.path.clone()]), &sockets::Here);
        assert!(kept.path.exists() && !old.exists());
        windows.keep(&BTreeSet::new(), &sockets::Here);
        assert!(!kept.path.exists());
    }
}
