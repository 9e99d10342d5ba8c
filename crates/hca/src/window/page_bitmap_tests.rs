//! A window's contents on another host, as a VMM brings them, under the eyes of the daemon there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{BitmapSnapshot, RUNS};
use crate::window::notes::ProgramNote;
use crate::window::owners::Giver;
use crate::window::{Account, Pages, Window};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use uverbs::window::{DATA, FIRST, PAGE_BITMAP};
use uverbs::{PAGE, Part, Uuid, WindowKind};

const LEN: u64 = 4 << 20;
const PAGES: u64 = (LEN - FIRST) / PAGE;

fn window() -> (Arc<Window>, File) {
    let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, DATA + LEN).unwrap();
    let ours = file.try_clone().unwrap().into();
    (Window::open(file, WindowKind::Own, Uuid([7; 16]), "vm1").unwrap(), ours)
}

fn take(window: &Arc<Window>, account: &Arc<Account>, pages: u64) -> Option<Arc<Pages>> {
    let taken = window.take(pages * PAGE, false, &window.mapping().unwrap(), account);
    taken.ok().map(|pages| pages[0].clone())
}

fn account(window: &Arc<Window>) -> Arc<Account> {
    let note = ProgramNote { guest: "vm1".into(), is_remote: true, ..ProgramNote::default() };
    window.account(note, None).unwrap()
}

fn give_back(window: &Window, part: Part) -> bool {
    window.give_back_orphaned(Giver { guest: "vm1", secret: Uuid::default() }, part)
}

/// Copies all of a file, empty pages too.
fn copy(from: &File, to: &File) {
    let mut all = vec![0; (DATA + LEN) as usize];
    from.read_exact_at(&mut all, 0).unwrap();
    to.write_all_at(&all, 0).unwrap();
}

/// Takes every page of the window, one by one, and so finds all that are free.
fn all_free(window: &Arc<Window>) -> Vec<Arc<Pages>> {
    let account = account(window);
    std::iter::from_fn(|| take(window, &account, 1)).collect()
}

#[test]
fn the_next_host_knows_what_programs_have() {
    let ((here, ours), (there, theirs)) = (window(), window());
    let account = account(&here);
    let [first, gone, last] = [3, 2, 5].map(|pages| take(&here, &account, pages).unwrap());
    drop(gone);
    account.leave();
    let parts = [first.part(), last.part()];
    // Some are empty, which those of the heap may be.
    assert!(first.first(8).unwrap().write(0, b"my heap!"));
    drop((first, last));
    copy(&ours, &theirs);
    there.see_arrival();
    assert_eq!((there.describe().orphaned, there.describe().used), (8 * PAGE, 0));
    let free = all_free(&there);
    assert_eq!(free.len() as u64, PAGES - 8);
    let mut bytes = [0; 8];
    theirs.read_exact_at(&mut bytes, DATA + parts[0].offset).unwrap();
    assert_eq!(&bytes, b"my heap!");
    // It gives them back, once and whole.
    for part in parts {
        let more = Part { len: part.len + PAGE, ..part };
        assert!(!give_back(&there, more) && give_back(&there, part));
        assert!(!give_back(&there, part));
    }
    drop(free);
    assert_eq!((there.describe().orphaned, all_free(&there).len() as u64), (0, PAGES));
    // Back it finds all free, though programs had pages here.
    assert_eq!(here.describe().orphaned, 8 * PAGE);
    copy(&theirs, &ours);
    here.see_arrival();
    assert_eq!((here.describe().orphaned, all_free(&here).len() as u64), (0, PAGES));
}

/// Memory of free pages goes back to the host: a VMM touches all that it copies.
#[test]
fn free_pages_take_no_memory_on_the_next_host() {
    let ((_, ours), (there, theirs)) = (window(), window());
    copy(&ours, &theirs);
    let takes = || std::os::unix::fs::MetadataExt::blocks(&theirs.metadata().unwrap()) * 512;
    assert!(takes() >= LEN);
    there.see_arrival();
    assert!(takes() <= DATA + FIRST, "{}", takes());
}

/// A daemon after this one as well, though pages are empty. What was noted of another size counts for nothing.
#[test]
fn the_next_daemon_knows_what_programs_have() {
    let (here, file) = window();
    let account = account(&here);
    let pages = take(&here, &account, 3).unwrap();
    let (reopened, part) = (file.try_clone().unwrap(), pages.part());
    // Whatever others touched.
    file.write_all_at(&[0; PAGE as usize], DATA + LEN - PAGE).unwrap();
    let next = Window::open(reopened.into(), WindowKind::Own, Uuid([7; 16]), "vm1").unwrap();
    assert_eq!(next.describe().orphaned, 3 * PAGE);
    assert!(give_back(&next, part));
    file.write_all_at(&[0xff; 8], PAGE_BITMAP + 16).unwrap();
    let next = Window::open(file.into(), WindowKind::Own, Uuid([7; 16]), "vm1").unwrap();
    assert_eq!(next.describe().orphaned, PAGE, "the page that was touched");
}

/// An administrator of the machine writes anything there: no two programs get one page by the daemon, and none is lost
/// for a machine that runs anew.
#[test]
fn whatever_is_noted_nobody_gets_pages_twice() {
    bolero::check!().with_type::<(Vec<u8>, Vec<(u8, u8)>)>().for_each(|(noted, steps)| {
        let (window, file) = window();
        let account = account(&window);
        let mut has: Vec<Arc<Pages>> = Vec::new();
        for (step, which) in steps {
            match step % 4 {
                0 => has.extend(take(&window, &account, u64::from(*which) + 1)),
                1 if !has.is_empty() => drop(has.swap_remove(usize::from(*which) % has.len())),
                2 => file.write_all_at(noted, PAGE_BITMAP + 64 + u64::from(*which) % 128).unwrap(),
                _ => window.see_arrival(),
            }
            let mut parts: Vec<_> = has.iter().map(|pages| pages.part()).collect();
            parts.sort_by_key(|part| part.offset);
            assert!(parts.is_sorted_by(|a, b| a.offset + a.len <= b.offset), "{parts:?}");
            let of = window.describe();
            assert_eq!(of.used, parts.iter().map(|part| part.len).sum::<u64>());
            assert!(of.used + of.orphaned <= LEN - FIRST);
        }
        drop(has);
        window.free_earlier_boots("vm1", Uuid([2; 16]));
        assert_eq!((window.describe().orphaned, all_free(&window).len() as u64), (0, PAGES));
    });
}

/// Every second page, which takes memory for each of them.
#[test]
fn what_is_noted_takes_little_memory() {
    let (bytes, half) = (8 << 30, 4 << 30);
    let noted = BitmapSnapshot(vec![0x55; (bytes / PAGE / 8) as usize]);
    let ranges = [(FIRST, half - FIRST), (half + PAGE, bytes - half - PAGE)];
    let taken = noted.of(&ranges);
    assert_eq!(taken.len(), RUNS + ranges.len());
    let is_inside = |(start, end): &(u64, u64)| {
        start < end && ranges.iter().any(|(from, len)| from <= start && *end <= from + len)
    };
    assert!(taken.iter().all(is_inside) && taken.is_sorted_by(|a, b| a.1 <= b.0));
    assert_eq!(taken.last().map(|(_, end)| *end), Some(bytes));
}
