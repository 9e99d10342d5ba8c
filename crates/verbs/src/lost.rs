//! Parts of windows that a device gave and can't take back, because it is gone. The device's next instance finds them
//! in use and gives them to nobody else, so a program that opens the device again gives them back.

use crate::control::Control;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::{Part, Request};

/// The parts, each with the inode of its window.
static LOST: Mutex<Vec<(u64, Part)>> = Mutex::new(Vec::new());

fn lost() -> MutexGuard<'static, Vec<(u64, Part)>> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that the program no longer uses this part of the window with this inode.
pub fn note(window: u64, part: Part) {
    lost().push((window, part));
}

/// Gives back the noted parts of the windows with these inodes.
pub fn give_back(control: &Control, windows: &[u64]) {
    let (its, others) = lost().drain(..).partition::<Vec<_>, _>(|(window, _)| windows.contains(window));
    lost().extend(others);
    for (_, part) in its {
        // The new instance refuses if it has already given the part to somebody else.
        let _ = control.exchange(&Request::FreePages { part }, &[]);
    }
}
