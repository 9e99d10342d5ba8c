//! Looking into another network namespace.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space as enter};
use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

/// Runs `look` on a thread of its own that was moved into the network namespace.
///
/// # Errors
/// No permission (CAP_SYS_ADMIN), or what `look` answers.
pub(crate) fn inside<T: Send>(
    namespace: BorrowedFd<'_>,
    look: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let visit = scope.spawn(|| {
            enter(namespace, Some(LinkNameSpaceType::Network))?;
            look()
        });
        visit.join().unwrap_or_else(|_| Err(io::Error::other("the look into the namespace panicked")))
    })
}
