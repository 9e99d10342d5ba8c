//! One device, and what it tells the control plane.

use super::AnyError;
use super::windows::OpenWindow;
use control::{RdmaSpec, RdmaStatus, WindowSpec, WindowStatus, WindowUser};
use hca::{Answers, ClientDescription, DeviceError, Fabric};
use ringport::{Downlink, Uplink};
use rustix::net::SocketType;
use sockets::{Listener, ListeningFile, Place, Sockets};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio::VmmEvent;

/// Programs in a virtual machine that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A verbs device.
pub struct Device {
    guest: String,
    adapter: hca::Device,
    own: Option<Own>,
    common: Mutex<Option<Arc<OpenWindow>>>,
}

/// A window to have.
pub struct Window {
    pub open: Arc<OpenWindow>,
    pub spec: WindowSpec,
    /// User and group of the VMM.
    pub owner: Option<(u32, u32)>,
}

/// The window of the device's virtual machine, and the socket that its programs come to where the kernel has none.
struct Own {
    open: Arc<OpenWindow>,
    listener: Listener,
    file: Arc<dyn ListeningFile>,
    /// Its virtual machine may migrate.
    migrates: bool,
}

impl Device {
    /// Opens it, for this user and group.
    ///
    /// # Errors
    /// Where its socket can't be made.
    pub fn open(
        spec: &RdmaSpec,
        owner: Option<(u32, u32)>,
        (fabric, sockets): (&Arc<Fabric>, &dyn Sockets),
        port: (Uplink, Downlink),
    ) -> Result<Self, AnyError> {
        let socket = Place { path: spec.socket.clone(), owner, mode: spec.mode };
        let adapter = hca::Device::open(spec.adapter.clone(), (&socket, sockets), fabric, port)?;
        Ok(Self { guest: spec.adapter.guest.clone(), adapter, own: None, common: Mutex::default() })
    }

    /// The device with these windows.
    ///
    /// # Errors
    /// Where the socket of programs in its virtual machine can't be made.
    pub fn with_windows(
        mut self,
        own: Option<Window>,
        common: Option<Arc<OpenWindow>>,
        sockets: &dyn Sockets,
    ) -> Result<Self, AnyError> {
        if let Some(Window { open, spec, owner }) = own {
            let place = Place { path: spec.socket(), owner, mode: spec.mode };
            let (listener, file) = sockets.listen(&place, SocketType::STREAM, BACKLOG)?;
            let migrates = spec.migrates;
            if migrates {
                // Nothing of its memory is to be written before it runs here.
                self.adapter.let_migrate();
            }
            self.own = Some(Own { open, listener: listener.into(), file, migrates });
        }
        self.set_common(common)?;
        if let Some(own) = &self.own {
            self.adapter.listen_streams(own.listener.as_fd().try_clone_to_owned()?)?;
        }
        Ok(self)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OpenWindow>>> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The window that it has in common with others.
    pub fn common(&self) -> Option<Arc<OpenWindow>> {
        self.lock().clone()
    }

    /// All its windows.
    pub fn windows(&self) -> Vec<Arc<OpenWindow>> {
        self.own.iter().map(|own| own.open.clone()).chain(self.common()).collect()
    }

    /// Gives it a window in common with others, or takes it away.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn set_common(&self, common: Option<Arc<OpenWindow>>) -> Result<(), DeviceError> {
        let mut has = self.lock();
        let window = |open: &Arc<OpenWindow>| open.window.clone();
        let own = self.own.as_ref().map(|own| window(&own.open));
        self.adapter.set_windows(own, common.as_ref().map(window))?;
        *has = common;
        Ok(())
    }

    /// This process is the VMM of its virtual machine.
    pub fn set_vmm(&self, process: i32) {
        self.adapter.set_vmm(process);
    }

    /// Whether it is of this guest.
    pub fn is_of(&self, guest: &str) -> bool {
        self.guest == guest
    }

    /// What the VMM of its guest did. Where the virtual machine begins anew, it finds its windows as they were when it
    /// began first. Where it ended, so did its programs, whose streams may not tell.
    pub fn vmm(&self, event: VmmEvent) {
        let Some(own) = &self.own else { return };
        match event {
            VmmEvent::Came(process) => self.adapter.set_vmm(process),
            VmmEvent::Stopped | VmmEvent::Left => {}
            VmmEvent::Runs => return self.resume(),
            VmmEvent::Halts if !own.migrates => return,
            VmmEvent::Halts => return self.halt(),
        }
        let common = self.lock();
        if event == VmmEvent::Left {
            let window = |open: &Arc<OpenWindow>| open.window.clone();
            let of_trust = common.as_ref().map(window);
            // Programs of a window that the device does not have are disconnected.
            let ended = self.adapter.set_windows(None, of_trust.clone());
            let restored = self.adapter.set_windows(Some(window(&own.open)), of_trust);
            if let Err(e) = ended.and(restored) {
                tracing::warn!(guest = self.guest, "programs of a virtual machine that ended: {e}");
            }
        }
        own.open.renew();
        common.iter().for_each(|common| common.renew());
    }

    /// Its virtual machine goes on, perhaps with the contents that the window had on another host.
    pub fn resume(&self) {
        let Some(own) = self.own.as_ref().filter(|own| own.migrates) else { return };
        // Where the device was just opened, its VMM may tell the same again: programs have got free pages meanwhile.
        let _alone = self.lock();
        if !self.adapter.is_halted() {
            return;
        }
        own.open.renew();
        own.open.window.see_arrival();
        self.adapter.resume();
    }

    /// Its virtual machine stands still, or is about to be copied.
    fn halt(&self) {
        let guest = &self.guest;
        match self.adapter.halt() {
            Ok(0) => {}
            Ok(contexts) => {
                tracing::info!(
                    guest,
                    contexts,
                    "its VM stops, or migrates: programs in it lost their verbs device"
                );
            }
            Err(contexts) => tracing::error!(
                guest,
                contexts,
                "its VM stops, or migrates, and the verbs device is still at work for programs in it: what they \
                 received last may be missing where it goes on"
            ),
        }
    }

    /// Gives the socket of programs in its virtual machine to another VMM.
    ///
    /// # Errors
    /// The kernel's.
    pub fn give_machines(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), sockets::Error> {
        self.own.as_ref().map_or(Ok(()), |own| own.file.give_to(owner, mode))
    }

    /// Makes it be another.
    ///
    /// # Errors
    /// Where its socket can't be given to its new owner.
    pub fn update(&self, spec: &RdmaSpec, owner: Option<(u32, u32)>) -> Result<(), AnyError> {
        self.adapter.give_to(owner, spec.mode)?;
        self.adapter.update(spec.adapter.clone());
        Ok(())
    }

    /// Copies of the sockets by which its applications come. The last one is that of applications of this kernel, which
    /// versions without windows take.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        let machines = self.own.iter().map(|own| own.listener.as_fd().try_clone_to_owned());
        machines.chain([self.adapter.listener()]).collect()
    }

    /// The number of its interface.
    pub fn set_port(&self, port: u16) {
        self.adapter.set_port(port);
    }

    /// Rules or ways may be others now.
    pub fn review(&self) {
        self.adapter.review();
    }

    /// Asks its applications what they have.
    pub fn ask(&self) -> Answers {
        self.adapter.ask()
    }

    /// What it, and these applications, which are all that it has, tell of themselves.
    pub fn describe(&self, name: String, clients: Vec<ClientDescription>) -> RdmaStatus {
        RdmaStatus {
            name,
            counters: self.adapter.counters(&clients),
            clients,
            connections: self.adapter.describe_connections(),
            holders: self.adapter.holders(),
            window: self.own.as_ref().map(|own| self.status(&own.open)),
            common: self.common().map(|common| self.status(&common)),
        }
    }

    fn status(&self, window: &OpenWindow) -> WindowStatus {
        let of = window.window.describe();
        let ours = of.programs.into_iter().filter(|program| program.guest == self.guest);
        let user = |program: hca::WindowUser| WindowUser {
            pid: program.pid,
            program: program.program.unwrap_or_default(),
            bytes: program.bytes,
        };
        WindowStatus {
            uuid: of.uuid.to_string(),
            used: of.used,
            left: of.left,
            file: window.file,
            users: ours.map(user).collect(),
        }
    }
}
