#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::window::owners::Giver;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::fs::FileExt;

const LEN: u64 = 4 << 20;
const UUID: Uuid = Uuid(*b"0123456789abcdef");

fn file(len: u64) -> OwnedFd {
    let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

pub fn window(kind: WindowKind) -> (Arc<Window>, std::fs::File) {
    let file = file(DATA + LEN);
    let reader = file.try_clone().unwrap().into();
    (Window::open(file, kind, UUID, "vm1").unwrap(), reader)
}

/// Returns the note of a program in the machine of a guest, with this secret.
pub fn remote(guest: &str, secret: u8) -> ProgramNote {
    let (boot, secret) = (Uuid([1; 16]), Uuid([secret; 16]));
    ProgramNote { guest: guest.into(), is_remote: true, boot, secret, pid: 7, ..ProgramNote::default() }
}

fn giver(guest: &str, secret: u8) -> Giver<'_> {
    Giver { guest, secret: Uuid([secret; 16]) }
}

/// The mapping and account with which a program takes pages.
struct Program(Arc<Mapping>, Arc<Account>);

impl Program {
    fn new(window: &Arc<Window>, guest: &str) -> Self {
        Self::noted(window, remote(guest, 7))
    }

    fn noted(window: &Arc<Window>, note: ProgramNote) -> Self {
        Self(window.mapping().unwrap(), window.account(note, Some("a.out".into())).unwrap())
    }

    fn take(&self, window: &Arc<Window>, bytes: u64) -> Result<Vec<Arc<Pages>>, NoPages> {
        window.take(bytes, true, &self.0, &self.1)
    }
}

fn is_zero(file: &std::fs::File, part: Part) -> bool {
    let mut bytes = vec![1; part.len as usize];
    file.read_exact_at(&mut bytes, DATA + part.offset).unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn a_window_says_what_it_is() {
    let (window, file) = window(WindowKind::Own);
    let mut bytes = [0; WindowHeader::BYTES];
    file.read_exact_at(&mut bytes, DATA).unwrap();
    let header = WindowHeader::from_bytes(&bytes).unwrap();
    assert_eq!((header.uuid, header.len, &*header.name), (UUID, LEN, "vm1"));
    assert_eq!((window.uuid(), window.describe().len), (UUID, LEN - FIRST));
    let small = Window::open(self::file(DATA + PAGE), WindowKind::Own, UUID, "vm1");
    assert!(matches!(small, Err(WindowError::NoRoom)));
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    assert!(Window::open(socket.unwrap(), WindowKind::Own, UUID, "vm1").is_err());
}

#[test]
fn pages_show_nothing_of_who_had_them_before() {
    let (window, file) = window(WindowKind::Own);
    let one = Program::new(&window, "vm1");
    let pages = one.take(&window, 3 * PAGE - 5).unwrap();
    let part = pages[0].part();
    assert_eq!((pages.len(), part.len), (1, 3 * PAGE));
    assert!(pages[0].first(3 * PAGE as usize).unwrap().write(100, b"secret"));
    assert!(!is_zero(&file, part));
    let described = window.describe();
    assert_eq!((described.used, described.programs[0].bytes), (3 * PAGE, 3 * PAGE));
    assert!(pages[0].view(part.offset + PAGE, 2 * PAGE).is_some());
    assert!(pages[0].view(part.offset + PAGE, 2 * PAGE + 1).is_none());
    assert!(pages[0].view(part.offset - PAGE, PAGE).is_none());
    // A part of them that is in use keeps them.
    let held = pages[0].clone();
    drop(pages);
    assert!(!is_zero(&file, part));
    drop(held);
    assert!(is_zero(&file, part));
    let again = one.take(&window, PAGE).unwrap();
    assert_eq!(again[0].part().offset, part.offset);
    drop(again);
    assert_eq!((window.describe().used, window.describe().programs), (0, vec![]));
}

#[test]
fn what_is_exhausted_is_refused_and_comes_back() {
    let (window, _) = window(WindowKind::Own);
    let one = Program::new(&window, "vm1");
    let all: Vec<_> = std::iter::from_fn(|| one.take(&window, 64 << 10).ok()).collect();
    assert!(matches!(one.take(&window, 64 << 10), Err(NoPages::Own(_))));
    assert!(matches!(one.take(&window, u64::MAX), Err(NoPages::Own(_))));
    let every_second = all.into_iter().enumerate().filter(|(at, _)| at % 2 == 0);
    let held: Vec<_> = every_second.map(|(_, pages)| pages).collect();
    let pieces = one.take(&window, 256 << 10).unwrap();
    assert!(pieces.len() >= 4, "{}", pieces.len());
    assert!(window.take(256 << 10, false, &one.0, &one.1).is_err());
    drop((held, pieces));
    assert_eq!(one.take(&window, LEN - FIRST).unwrap().len(), 1);
    assert_eq!(window.describe().used, 0);
}

#[test]
fn no_guest_takes_all_of_what_is_common() {
    let (window, _) = window(WindowKind::Common);
    let guests = ["vm1", "vm2", "vm3"].map(|guest| Program::new(&window, guest));
    let mut left = LEN - FIRST;
    let mut all = Vec::new();
    for guest in &guests {
        let taken: Vec<_> = std::iter::from_fn(|| guest.take(&window, PAGE).ok()).collect();
        assert_eq!(taken.len() as u64, left / PAGE / 2);
        left -= taken.len() as u64 * PAGE;
        // Another program of the same guest has no more.
        let other = Program::new(&window, &guest.1.guest);
        assert!(matches!(other.take(&window, PAGE), Err(NoPages::Common(_))));
        all.push(taken);
    }
    drop(all);
    assert_eq!(window.describe().used, 0);
}

#[test]
fn pages_of_programs_that_outlive_the_device_are_nobodys() {
    let (window, file) = window(WindowKind::Own);
    let one = Program::new(&window, "vm1");
    let pages = one.take(&window, 2 * PAGE).unwrap();
    let part = pages[0].part();
    assert!(pages[0].first(8).unwrap().write(0, b"my heap"));
    one.1.leave();
    drop(pages);
    assert_eq!((window.describe().used, window.describe().orphaned), (0, 2 * PAGE));
    window.free_earlier_boots("another", Uuid([2; 16]));
    assert_eq!(window.describe().orphaned, 2 * PAGE);
    // A new daemon finds them, too.
    drop(window);
    let window = Window::open(file.try_clone().unwrap().into(), WindowKind::Own, UUID, "vm1").unwrap();
    assert_eq!(window.describe().orphaned, 2 * PAGE);
    let two = Program::new(&window, "vm1");
    let rest = two.take(&window, LEN - FIRST - 2 * PAGE).unwrap();
    assert!(two.take(&window, PAGE).is_err());
    assert!(!is_zero(&file, part));
    drop(rest);
    let half = Part { len: PAGE, ..part };
    let give_back = |part| window.give_back_orphaned(giver("vm1", 7), part);
    assert!(give_back(half) && !give_back(half) && !give_back(part));
    assert!(is_zero(&file, half) && window.describe().orphaned == PAGE);
    assert!(!window.is_new_boot(Uuid([1; 16])) && !window.is_new_boot(Uuid([1; 16])));
    window.free_earlier_boots("vm1", Uuid([2; 16]));
    let again = Window::open(file.try_clone().unwrap().into(), WindowKind::Own, UUID, "vm1").unwrap();
    assert!(again.is_new_boot(Uuid([2; 16])) && !again.is_new_boot(Uuid([2; 16])));
    assert_eq!((window.describe().orphaned, two.take(&window, LEN - FIRST).unwrap().len()), (0, 1));
}

/// A guest gives back, and counts, only the orphaned pages of its own programs in a common window.
#[test]
fn what_a_guest_left_stays_its_own() {
    let (window, _) = window(WindowKind::Common);
    let one = Program::new(&window, "vm1");
    let pages = one.take(&window, LEN / 4).unwrap();
    let part = pages[0].part();
    one.1.leave();
    drop(pages);
    assert!(
        !window.give_back_orphaned(giver("vm1", 8), part)
            && !window.give_back_orphaned(giver("vm1", 0), part)
    );
    assert_eq!((window.describe().used, window.describe().orphaned), (0, LEN / 4));
    let again = Program::new(&window, "vm1");
    assert!(matches!(again.take(&window, LEN / 4), Err(NoPages::Common(_))));
    assert!(Program::new(&window, "vm2").take(&window, LEN / 4).is_ok());
    assert!(window.give_back_orphaned(giver("vm1", 7), part));
    assert_eq!(window.describe().orphaned, 0);
}

/// Waits for something that another thread does.
fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Makes a challenge, and waits until it is in the window.
fn written(window: &Arc<Window>) -> Option<Challenge> {
    let (told, tells) = std::sync::mpsc::channel();
    let challenge = window.challenge(move || told.send(()).unwrap())?;
    tells.recv().unwrap();
    assert_eq!(challenge.is_written(), Some(true));
    Some(challenge)
}

/// A window whose pages do not come keeps nobody waiting but who asks for them.
#[test]
fn challenges_are_written_by_another_thread() {
    let (window, _) = window(WindowKind::Own);
    // Whoever touches the window waits.
    let held = lock(&window.mapping);
    let (told, tells) = std::sync::mpsc::channel();
    let challenge = window.challenge(move || told.send(()).unwrap()).unwrap();
    assert!(challenge.is_written().is_none() && tells.try_recv().is_err());
    drop(window.challenge(|| ()).unwrap());
    drop(held);
    tells.recv().unwrap();
    assert_eq!(challenge.is_written(), Some(true));
}

/// Whoever holds the lock of a window's pages keeps nobody from proving that he can read it.
#[test]
fn challenges_wait_for_no_pages() {
    let (window, _) = window(WindowKind::Own);
    let held = lock(&window.state);
    let challenge = written(&window).unwrap();
    drop((challenge, held));
}

#[test]
fn a_program_has_a_bounded_number_of_pieces() {
    let (window, _) = window(WindowKind::Own);
    let (one, other) = (Program::new(&window, "vm1"), Program::new(&window, "vm1"));
    one.1.pieces.store(PIECES - 2, Ordering::Relaxed);
    let pages = [(); 2].map(|()| one.take(&window, PAGE).unwrap());
    assert_eq!(one.take(&window, PAGE).unwrap_err(), NoPages::Pieces);
    assert!(other.take(&window, PAGE).is_ok());
    drop(pages);
    assert!(one.take(&window, PAGE).is_ok());
}

#[test]
fn a_file_that_was_cut_ends_its_programs_and_can_be_mapped_again() {
    let (window, file) = window(WindowKind::Own);
    let one = Program::new(&window, "vm1");
    let pages = one.take(&window, PAGE).unwrap();
    let memory = pages[0].first(8).unwrap();
    file.set_len(0).unwrap();
    let mut bytes = [1; 8];
    assert!(memory.read(0, &mut bytes) && bytes == [0; 8]);
    assert!(one.0.fault.get().is_some());
    // Whoever cut it keeps nobody out from then on.
    let two = Program::new(&window, "vm1");
    let mut header = [0; WindowHeader::BYTES];
    file.read_exact_at(&mut header, DATA).unwrap();
    assert_eq!(WindowHeader::from_bytes(&header).unwrap().uuid, UUID);
    assert_eq!(file.metadata().unwrap().len(), DATA + LEN);
    assert!(two.0.fault.get().is_none());
    assert!(two.take(&window, PAGE).unwrap()[0].first(8).unwrap().write(0, b"it works"));
    assert!(two.0.fault.get().is_none());
}

/// Returns the bytes of memory that a file takes.
fn taken(file: &std::fs::File) -> u64 {
    512 * std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap())
}

#[test]
fn pages_that_the_daemon_writes_are_there_beforehand() {
    let (window, file) = window(WindowKind::Own);
    assert!(taken(&file) >= FIRST, "{}", taken(&file));
    // As well in a new mapping.
    let old = Program::new(&window, "vm1");
    file.set_len(0).unwrap();
    assert!(old.0.memory.write(0, &[0]) && old.0.fault.get().is_some());
    drop(Program::new(&window, "vm1"));
    assert!(taken(&file) >= FIRST, "{}", taken(&file));
}

#[test]
fn a_file_that_was_made_longer_is_cut() {
    let (window, file) = window(WindowKind::Own);
    let one = Program::new(&window, "vm1");
    let pages = one.take(&window, PAGE).unwrap();
    assert!(pages[0].first(8).unwrap().write(0, b"it stays"));
    window.cut_excess();
    assert!(file.metadata().unwrap().len() == DATA + LEN);
    file.write_all_at(&[1; 1 << 20], DATA + LEN).unwrap();
    window.cut_excess();
    assert_eq!(file.metadata().unwrap().len(), DATA + LEN);
    assert!(taken(&file) < 1 << 20 && one.0.fault.get().is_none());
    let mut bytes = [0; 8];
    assert!(pages[0].first(8).unwrap().read(0, &mut bytes) && bytes == *b"it stays");
    // Pages behind its end do not show in its size.
    fallocate(&file, FallocateFlags::KEEP_SIZE, DATA + LEN, 4 * LEN).unwrap();
    assert!(file.metadata().unwrap().len() == DATA + LEN && taken(&file) > 4 * LEN);
    window.cut_excess();
    assert!(file.metadata().unwrap().len() == DATA + LEN && taken(&file) < 1 << 20);
    assert!(pages[0].first(8).unwrap().read(0, &mut bytes) && bytes == *b"it stays");
    // A new mapping restores the length, also if the file was too short before.
    file.set_len(0).unwrap();
    assert!(one.0.memory.write(0, &[0]) && one.0.fault.get().is_some());
    file.set_len(DATA + LEN + PAGE).unwrap();
    assert!(window.mapping().unwrap().fault.get().is_none());
    assert_eq!(file.metadata().unwrap().len(), DATA + LEN);
    // One that is too short is left to the guard: programs that have what is gone must learn of it.
    file.set_len(DATA + LEN - PAGE).unwrap();
    window.cut_excess();
    assert_eq!(file.metadata().unwrap().len(), DATA + LEN - PAGE);
}

/// Creates a tmpfs of this many bytes that has no mount point; `None` if mounting is not permitted.
fn file_system(bytes: u64) -> Option<OwnedFd> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    rustix::mount::fsconfig_set_string(&context, "size", bytes.to_string()).ok()?;
    rustix::mount::fsconfig_create(&context).ok()?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
}

/// The window of one VMM fills the file system. Programs of another that are at work go on.
#[test]
fn a_full_file_system_takes_nothing_from_who_has_memory() {
    // As an administrator only.
    let Some(system) = file_system(4 * LEN) else { return eprintln!("mounting is not permitted here") };
    let window = |name: &str| {
        use rustix::fs::{Mode, OFlags, openat};
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = openat(&system, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
        ftruncate(&file, DATA + LEN).unwrap();
        let other = std::fs::File::from(file.try_clone().unwrap());
        Window::open(file, WindowKind::Own, UUID, name).map(|window| (window, other))
    };
    let ((victim, _), (hostile, file)) = (window("victim").unwrap(), window("hostile").unwrap());
    let one = Program::new(&victim, "vm1");
    let pages = one.take(&victim, PAGE).unwrap();
    let full = |at: u64| file.write_all_at(&[1; PAGE as usize], DATA + LEN + at * PAGE).is_err();
    assert!((0..4 * LEN / PAGE).any(full));
    let challenges: Vec<_> = std::iter::from_fn(|| written(&victim)).collect();
    assert_eq!(challenges.len() as u64, CHALLENGES);
    assert!(challenges.iter().all(|challenge| {
        let mut nonce = [0; 32];
        one.0.memory.read(challenge.offset() as usize, &mut nonce) && challenge.is_met_by(&nonce)
    }));
    assert!(pages[0].first(8).unwrap().write(0, b"it works") && !victim.is_new_boot(Uuid([1; 16])));
    assert!(one.0.fault.get().is_none());
    // Requests that need memory are refused.
    assert!(matches!(one.take(&victim, PAGE), Err(NoPages::Host(PAGE))));
    let said = window("late").unwrap_err().to_string();
    assert!(said.contains("no memory is left") && said.contains("file system is full"), "{said}");
    // It is there again soon.
    hostile.cut_excess();
    assert!(one.take(&victim, PAGE).is_ok() && window("late").is_ok());
    assert!(one.0.fault.get().is_none());
}

#[test]
fn challenges_are_in_the_window_and_different() {
    let (window, file) = window(WindowKind::Own);
    let all: Vec<_> = std::iter::from_fn(|| written(&window)).collect();
    assert_eq!(all.len() as u64, CHALLENGES);
    let read = |challenge: &Challenge| {
        let mut nonce = [0; 32];
        file.read_exact_at(&mut nonce, DATA + challenge.offset()).unwrap();
        nonce
    };
    for (at, challenge) in all.iter().enumerate() {
        assert!(challenge.is_met_by(&read(challenge)) && (PAGE..FIRST).contains(&challenge.offset()));
        assert!(!challenge.is_met_by(&read(&all[(at + 1) % all.len()])) && !challenge.is_met_by(&[0; 32]));
    }
    drop(all);
    let is_free = || *lock(&window.challenges) == 0;
    until(is_free);
    let one = written(&window).unwrap();
    assert_eq!(one.offset(), PAGE);
    drop(one);
    until(is_free);
    let part = Part { window: WindowKind::Own, offset: PAGE, len: FIRST - PAGE };
    assert!(is_zero(&file, part));
}
