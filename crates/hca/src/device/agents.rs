//! Agents in the device's machine, which offer sockets of programs there: the device lets them in and ends them, and
//! knows nothing else of them.

use super::Shared;
use crate::base::random;
use crate::base::refusal::{no_memory, refuse};
use crate::program::who::Who;
use crate::streams::reception::HALTED;
use crate::streams::sockets_service::SocketsProgram;
use crate::window::rings::{RingMemory, Users};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use sockets::Untrusted;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{Claim, Connection, Refusal, Stream, Uuid, Welcome};

/// Agents that are being let in, of one device.
const COMING: usize = 64;

/// The streams of agents: one for each program.
#[derive(Debug, Default)]
pub(super) struct Agents {
    all: Mutex<Vec<(Uuid, Weak<Untrusted>)>>,
    /// The boot of which the last one was.
    boot: Mutex<Uuid>,
    coming: Arc<()>,
}

impl Agents {
    fn lock(&self) -> MutexGuard<'_, Vec<(Uuid, Weak<Untrusted>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the boot of the machine, if an agent has told it.
    pub fn boot(&self) -> Option<Uuid> {
        Some(*self.boot.lock().unwrap_or_else(PoisonError::into_inner))
            .filter(|boot| *boot != Uuid::default())
    }

    fn add(&self, boot: Uuid, socket: &Arc<Untrusted>) {
        *self.boot.lock().unwrap_or_else(PoisonError::into_inner) = boot;
        let mut all = self.lock();
        all.retain(|(_, socket)| socket.strong_count() > 0);
        all.push((boot, Arc::downgrade(socket)));
    }

    /// Disconnects agents of these boots.
    pub fn end(&self, which: impl Fn(Uuid) -> bool) {
        let all = self.lock();
        for socket in all.iter().filter(|(boot, _)| which(*boot)).filter_map(|(_, socket)| socket.upgrade()) {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }
}

impl Shared {
    /// Starts a thread that lets in an agent: programs of an earlier boot end first, which may take long.
    pub(super) fn let_in(self: Arc<Self>, socket: Arc<Untrusted>, claim: Claim) -> Result<(), Refusal> {
        let place = self.agents.coming.clone();
        if Arc::strong_count(&place) > COMING {
            return refuse(Errno::AGAIN, "too many programs with sockets come at the same time");
        }
        let serve = move || {
            let answer = self.admit_agent_now(&socket, claim);
            let _ = Connection::Stream(Stream::serving(socket)).send(&answer, &[]);
            drop(place);
        };
        std::thread::Builder::new().name("verbs-agent".into()).spawn(serve).map(drop).map_err(no_memory)
    }

    fn admit_agent_now(&self, socket: &Arc<Untrusted>, claim: Claim) -> Result<Welcome, Refusal> {
        let Some(service) = self.fabric.sockets.get() else {
            return refuse(Errno::OPNOTSUPP, "the host's daemon moves no sockets");
        };
        let Some(window) = self.adapter.windows().common else {
            return refuse(Errno::NODEV, "the guest has no window in common with others (`rdma_trust`)");
        };
        self.see_boot(claim.boot);
        self.agents.add(claim.boot, socket);
        // Whoever halts or closes the device disconnects all that are there afterwards.
        if self.adapter.is_halted() || self.adapter.is_closing() {
            return refuse(Errno::AGAIN, HALTED);
        }
        let common = Some(window.uuid());
        let (guest, user, pid) = (self.adapter.spec().guest.clone(), claim.uid, claim.pid);
        let who = Who::remote(claim);
        let name = who.program().map(str::to_owned);
        let secret = Uuid(std::array::from_fn(|_| random::number() as u8));
        let note = who.note(&guest, secret, self.adapter.vmm());
        let users: Weak<dyn Users> = Arc::downgrade(&(self.fabric.clone() as Arc<dyn Users>));
        let memory = RingMemory::new(window, users, note, name);
        let program = SocketsProgram { guest, user, pid, socket: socket.clone(), memory };
        if service.admit(program) {
            return Ok(Welcome::Accepted { common });
        }
        refuse(Errno::NOMEM, "the guest has no `sockets`, or too many programs with sockets")
    }
}
