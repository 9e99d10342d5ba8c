//! Parts of windows that a device gave and can't take back, because it is gone. Its next instance, which finds them in
//! use, gives them to nobody else; so a program that opens it again gives them back.

use crate::control::Control;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::{Part, Request};

/// The inodes of windows, and the parts.
static LOST: Mutex<Vec<(u64, Part)>> = Mutex::new(Vec::new());

fn lost() -> MutexGuard<'static, Vec<(u64, Part)>> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program does not use this part of the window with this inode any more.
pub fn note(window: u64, part: Part) {
    lost().push((window, part));
}

/// Gives back those of the windows with these inodes.
pub fn give_back(control: &Control, windows: &[u64]) {
    let (its, others) = lost().drain(..).partition::<Vec<_>, _>(|(window, _)| windows.contains(window));
    lost().extend(others);
    for (_, part) in its {
        // Whoever started the device anew may have given it to somebody else already: then it is refused.
        let _ = control.exchange(&Request::FreePages { part }, &[]);
    }
}
