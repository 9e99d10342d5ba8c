//! Programs in virtual machines: their agents come by the verbs devices, and their memory is of the windows there, which
//! containers can map as well.

use hca::{RingMemory, RingPages, SocketsProgram, SocketsService};
use matchmaker::{Agent, Job, Piece, Service, Window};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Lets programs in.
pub struct Agents(pub Weak<Service>);

struct Rings(RingMemory);

struct Ring(RingPages);

impl SocketsService for Agents {
    fn admit(&self, program: SocketsProgram) -> bool {
        let SocketsProgram { guest, user, pid, socket, memory } = program;
        let Some(service) = self.0.upgrade() else { return false };
        service.admit(Agent { guest, user, pid, socket, window: Arc::new(Rings(memory)) })
    }
}

impl Window for Rings {
    fn id(&self) -> [u8; 16] {
        self.0.uuid().0
    }

    fn later(&self, job: Job) {
        self.0.later(job);
    }

    fn lend(&self, guest: &str, user: u32, pid: i32) -> Option<Arc<dyn Window>> {
        Some(Arc::new(Rings(self.0.lend(guest, user, pid)?)))
    }

    fn file(&self) -> (BorrowedFd<'_>, u64) {
        self.0.file()
    }

    fn share(&self) -> bool {
        self.0.share()
    }

    fn lose(&self) {
        self.0.lose();
    }

    fn take(&self, bytes: usize) -> Option<Box<dyn Piece>> {
        Some(Box::new(Ring(self.0.take(bytes)?)))
    }
}

impl Piece for Ring {
    fn base(&self) -> Option<NonNull<u8>> {
        self.0.base()
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }

    fn free(&self) {
        self.0.free();
    }
}
