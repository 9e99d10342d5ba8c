//! A verbs device with its windows, and its status for the control plane.

use super::AnyError;
use super::windows::OpenWindow;
use crate::matchmaking::Matchmaker;
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

pub struct Device {
    guest: String,
    adapter: hca::Device,
    own: Option<Own>,
    common: Mutex<Option<Arc<OpenWindow>>>,
}

/// An open window that a device is to get.
pub struct Window {
    pub open: Arc<OpenWindow>,
    pub spec: WindowSpec,
    /// User and group of the VMM.
    pub owner: Option<(u32, u32)>,
}

/// The window of the device's virtual machine, and the socket of its programs for VMMs that don't use the
/// kernel's vhost-vsock.
struct Own {
    open: Arc<OpenWindow>,
    listener: Listener,
    file: Arc<dyn ListeningFile>,
    migrates: bool,
}

impl Device {
    /// Opens a device for this user and group.
    ///
    /// # Errors
    /// The device's socket can't be made.
    pub fn open(
        spec: &RdmaSpec,
        owner: Option<(u32, u32)>,
        (fabric, sockets): (&Arc<Fabric>, &dyn Sockets),
        port: (Uplink, Downlink),
    ) -> Result<Self, AnyError> {
        let socket = Place { path: spec.socket.clone(), owner, mode: spec.mode };
        let adapter = hca::Device::open(spec.adapter.clone(), &socket, sockets, fabric, port.0, port.1)?;
        Ok(Self { guest: spec.adapter.guest.clone(), adapter, own: None, common: Mutex::default() })
    }

    /// Gives the device these windows.
    ///
    /// # Errors
    /// The socket of programs in its virtual machine can't be made.
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
                // The window must not be written before the virtual machine runs here.
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

    pub fn common(&self) -> Option<Arc<OpenWindow>> {
        self.lock().clone()
    }

    pub fn windows(&self) -> Vec<Arc<OpenWindow>> {
        self.own.iter().map(|own| own.open.clone()).chain(self.common()).collect()
    }

    /// Gives the device a window that it shares with others, or takes it away.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn set_common(&self, common: Option<Arc<OpenWindow>>) -> Result<(), DeviceError> {
        let mut has = self.lock();
        let window = |open: &Arc<OpenWindow>| open.window.clone();
        let own = self.own.as_ref().map(|own| window(&own.open));
        self.adapter.set_windows(own, common.as_ref().map(window))?;
        *has = common;
        Ok(())
    }

    /// Returns the name of its window if the program that carried the machine's vsock has ended.
    pub fn without_vsock(&self) -> Option<String> {
        self.own.as_ref().filter(|_| self.adapter.has_lost_carrier()).map(|own| own.open.name())
    }

    /// Notes the process of the virtual machine's VMM.
    pub fn set_vmm(&self, process: i32) {
        self.adapter.set_vmm(process);
    }

    /// Has lines to other hosts carry connections of the guest's programs, if they do not yet.
    pub fn carry(&self, matchmaker: &Matchmaker) {
        let freight = || Some(Box::new(matchmaker.carriage(&self.guest)?) as Box<dyn hca::Freight>);
        if let Err(error) = self.adapter.carry(freight) {
            tracing::error!("sockets of {} stay with TCP between hosts: {error}", self.guest);
        }
    }

    pub fn is_of(&self, guest: &str) -> bool {
        self.guest == guest
    }

    /// Follows an event of the guest's VMM. If the virtual machine starts anew, it finds its windows as at
    /// its first start. If it ended, its programs ended too, although their streams may not show it.
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
            // Taking the window away disconnects its programs.
            let ended = self.adapter.set_windows(None, of_trust.clone());
            let restored = self.adapter.set_windows(Some(window(&own.open)), of_trust);
            if let Err(e) = ended.and(restored) {
                tracing::warn!(guest = self.guest, "programs of a virtual machine that ended: {e}");
            }
        }
        own.open.renew();
        common.iter().for_each(|common| common.renew());
    }

    /// Lets programs go on, because the virtual machine runs, perhaps with contents that the window had on a
    /// different host.
    pub fn resume(&self) {
        let Some(own) = self.own.as_ref().filter(|own| own.migrates) else { return };
        // If the device was just opened, its VMM may send the event again after programs have got free pages;
        // then do nothing.
        let _alone = self.lock();
        if !self.adapter.is_halted() {
            return;
        }
        own.open.renew();
        own.open.window.see_arrival();
        self.adapter.resume();
    }

    /// Stops programs, because the virtual machine stands still or is about to be copied.
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

    /// Gives the socket of programs in the virtual machine to a new VMM.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn give_machines(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), sockets::Error> {
        self.own.as_ref().map_or(Ok(()), |own| own.file.give_to(owner, mode))
    }

    /// Changes the device to a new specification and owner.
    ///
    /// # Errors
    /// The socket can't be given to the new owner.
    pub fn update(&self, spec: &RdmaSpec, owner: Option<(u32, u32)>) -> Result<(), AnyError> {
        self.adapter.give_to(owner, spec.mode)?;
        self.adapter.update(spec.adapter.clone());
        Ok(())
    }

    /// Duplicates the sockets on which its applications connect. The last one is for applications on this
    /// host, which daemon versions without windows also accept.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        let machines = self.own.iter().map(|own| own.listener.as_fd().try_clone_to_owned());
        machines.chain([self.adapter.listener()]).collect()
    }

    /// Sets the number of its interface.
    pub fn set_port(&self, port: u16) {
        self.adapter.set_port(port);
    }

    /// Tells the device that rules or ways may have changed.
    pub fn review(&self) {
        self.adapter.review();
    }

    /// Asks the device's applications for their status.
    pub fn ask(&self) -> Answers {
        self.adapter.ask()
    }

    /// Describes the device and `clients`, which must be all of its applications.
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
            left: of.orphaned,
            file: window.file,
            users: ours.map(user).collect(),
        }
    }
}
