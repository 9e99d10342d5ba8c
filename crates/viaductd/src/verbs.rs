//! Verbs devices: their sockets and windows, the ports through which they send and receive, and their status.

mod dax;
mod device;
mod rules;
mod windows;

use crate::machines::Machines;
use crate::matchmaking::Matchmaker;
use crate::privileges::Privileges;
use control::{RdmaSpec, RdmaStatus, WindowSpec};
use device::{Device, Window};
use hca::{Answers, Fabric};
use mem::{Opened, Port, PortStatus};
use model::VifId;
use ringport::RingPort;
pub use rules::EngineRules;
use sockets::Sockets;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use virtio::VmmEvent;
use windows::OpenWindow;
pub use windows::{Windows, make_directories};

type AnyError = Box<dyn Error + Send + Sync>;

/// The largest possible MTU, so a changed MTU needs no new device.
const MAX_MTU: u16 = 9216;
/// Frames that may wait in each direction. Their memory is allocated on first use.
const SLOTS: u32 = 1024;

pub struct Verbs {
    devices: Mutex<BTreeMap<String, Open>>,
    fabric: Arc<Fabric>,
    privileges: Privileges,
    windows: Windows,
    /// Why common windows are not open, by window name.
    problems: Mutex<BTreeMap<String, String>>,
    /// Guests whose virtual machines run and are not being copied.
    running: Mutex<BTreeSet<String>>,
    /// Process IDs of VMMs, by guest.
    vmms: Mutex<BTreeMap<String, i32>>,
    machines: Arc<Machines>,
}

/// A device and its port, which go when the port is dropped.
struct Open {
    /// The window that the device shall share with others.
    common: Option<WindowSpec>,
    device: Weak<Device>,
    port: Weak<dyn Port>,
}

/// The port of a device, which closes with it.
struct DevicePort {
    port: Arc<dyn Port>,
    device: Arc<Device>,
}

impl Port for DevicePort {
    fn status(&self) -> PortStatus {
        self.port.status()
    }

    fn is_up(&self) -> bool {
        self.port.is_up()
    }

    fn share(&self) -> io::Result<Vec<OwnedFd>> {
        self.device.listeners()
    }
}

impl Verbs {
    /// Starts without devices. `rules` say which packets may go from device to device; `windows` are the
    /// files that exist and the notes about them; programs in virtual machines connect on `machines`.
    pub fn new(
        rules: Box<dyn hca::Rules>,
        privileges: Privileges,
        windows: Windows,
        machines: Arc<Machines>,
    ) -> Self {
        let fabric = Arc::new(Fabric::new(rules));
        let (devices, problems, running, vmms) = Default::default();
        Self { devices, fabric, privileges, windows, problems, running, vmms, machines }
    }

    /// Passes on what agents in virtual machines say of sockets.
    pub fn serve_sockets(&self, matchmaker: &Matchmaker) {
        matchmaker.agents().into_iter().for_each(|agents| self.fabric.serve_sockets(agents));
    }

    /// Has all devices carry connections of guests with sockets to other hosts.
    pub fn carry_sockets(&self, matchmaker: &Matchmaker) {
        let devices: Vec<_> = self.devices().values().filter_map(|open| open.device.upgrade()).collect();
        devices.iter().for_each(|device| device.carry(matchmaker));
    }

    /// Lets programs wait at the devices' sockets, which the old daemon has too, until [`Self::accept`].
    pub fn hold(&self) {
        self.fabric.hold();
    }

    pub fn accept(&self) {
        self.fabric.accept();
    }

    /// Notes that the executor now has the port of an interface, which may be a verbs device's.
    pub fn attached(&self, vif: VifId, port: &Arc<dyn Port>) {
        let devices = self.devices();
        let is_its = |open: &&Open| open.port.upgrade().is_some_and(|its| Arc::ptr_eq(&its, port));
        if let Some(device) = devices.values().find(is_its).and_then(|open| open.device.upgrade()) {
            device.set_port(vif.0);
        }
    }

    /// Tells devices that rules or ways may have changed.
    pub fn review(&self) {
        self.devices().values().filter_map(|open| open.device.upgrade()).for_each(|device| device.review());
    }

    /// Checks a device as far as possible before its place is free.
    ///
    /// # Errors
    /// The owner of the device or its window has no account.
    pub fn check(&self, spec: &RdmaSpec) -> Result<(), AnyError> {
        self.owner(spec)?;
        spec.window.as_ref().map_or(Ok(()), |window| self.window_owner(window).map(drop))
    }

    /// Opens a device, with its sockets from `sockets`. It closes when its port is dropped.
    ///
    /// # Errors
    /// A socket has no place, its window no memory, or an owner no account; a system call failed.
    pub fn open(&self, spec: &RdmaSpec, sockets: &dyn Sockets) -> Result<Opened, AnyError> {
        let owner = self.owner(spec)?;
        let window = spec.window.as_ref().map(|window| self.open_window(window)).transpose()?;
        let common = self.common(spec.common.as_ref());
        let (opened, uplink, downlink) = ringport::open(&RingPort { mtu: MAX_MTU, slots: SLOTS })?;
        let device = Device::open(spec, owner, (&self.fabric, sockets), (uplink, downlink))?;
        let device = Arc::new(device.with_windows(window, common, sockets)?);
        tracing::info!("verbs device of {}: socket {}", spec.adapter.guest, spec.socket.display());
        let port: Arc<dyn Port> = Arc::new(DevicePort { port: opened.port, device: device.clone() });
        let common = spec.common.clone();
        let open = Open { common, device: Arc::downgrade(&device), port: Arc::downgrade(&port) };
        self.devices().insert(spec.name.clone(), open);
        // From here on, the device hears about its VMM's events.
        let vmms = self.vmms();
        vmms.get(&spec.adapter.guest).into_iter().for_each(|process| device.set_vmm(*process));
        drop(vmms);
        let running = self.running();
        if running.contains(&spec.adapter.guest) {
            device.resume();
        }
        drop(running);
        self.share_commons();
        Ok(Opened { port, ..opened })
    }

    /// Changes an open device so that the same clients may use it on.
    ///
    /// # Errors
    /// An owner has no account.
    pub fn update(&self, spec: &RdmaSpec) -> Result<(), AnyError> {
        let owner = self.owner(spec)?;
        let device = self.devices().get_mut(&spec.name).and_then(|open| {
            open.common.clone_from(&spec.common);
            open.device.upgrade()
        });
        if let Some(device) = device {
            device.update(spec, owner)?;
            if let Some(window) = &spec.window {
                let owner = self.window_owner(window)?;
                Windows::give(window, owner, &*self.privileges.sockets)?;
                device.give_machines(owner, window.mode)?;
            }
            device.set_common(self.common(spec.common.as_ref()))?;
        }
        self.share_commons();
        // Ways of other devices to this one may have changed.
        self.review();
        Ok(())
    }

    pub fn describe(&self) -> Vec<RdmaStatus> {
        // A device may take long to answer, so don't hold the lock: meanwhile others may come and go.
        let devices: Vec<_> = {
            let mut devices = self.devices();
            devices.retain(|_, open| open.device.strong_count() > 0);
            devices.iter().filter_map(|(name, open)| Some((name.clone(), open.device.upgrade()?))).collect()
        };
        // All are asked at once, so many that do not answer take no longer than one.
        let deadline = Answers::deadline();
        let asked: Vec<_> = devices.iter().map(|(_, device)| device.ask()).collect();
        let answered = devices.into_iter().zip(asked);
        answered.map(|((name, device), answers)| device.describe(name, answers.wait(deadline))).collect()
    }

    /// Opens the socket of programs in virtual machines if there is a window. Removes windows that are not
    /// wanted, if this daemon alone has the host.
    pub fn keep_windows(&self, wanted: &BTreeSet<PathBuf>, alone: bool) {
        if !wanted.is_empty() {
            self.machines.open(&self.privileges, &self.fabric);
        }
        if alone {
            self.windows.keep(wanted, &*self.privileges.sockets);
        }
        let names: BTreeSet<_> = wanted.iter().filter_map(|path| path.file_name()).collect();
        self.problems().retain(|name, _| names.contains(std::ffi::OsStr::new(name)));
    }

    /// Describes problems of windows that don't keep devices from working.
    pub fn window_problems(&self) -> Vec<(String, String)> {
        let machines = self.machines.problem().map(|why| {
            let message = format!(
                "programs in VMs do not reach their verbs devices by the vhost-vsock of the kernel, only by \
                 RUN_DIR/{}/NAME.vsock: {why}",
                control::WINDOW_DIR
            );
            ("vsock".to_owned(), message)
        });
        let problems = self.problems();
        let commons = problems.iter().map(|(name, why)| {
            let message = format!("the guests of this trust share no memory with VMs: {why}");
            (WindowSpec::object(name), message)
        });
        let removed = self.removed_windows().into_iter().map(|name| {
            let message = "its file was removed: VMs that have it go on, and one that starts now gets another; stop \
                           these VMs, restart the daemon, and start them again";
            (WindowSpec::object(&name), message.to_owned())
        });
        let unserved = self.machines_without_vsock().into_iter().map(|name| {
            let message = "the program that carried the VM's vsock (vhost-device-vsock) has ended, and programs in the VM \
                           reach no verbs device; start it again, then plug the VM's vsock device out and in, or start \
                           the VM again (this stays until a program of the VM is connected)";
            (WindowSpec::object(&name), message.to_owned())
        });
        commons.chain(removed).chain(unserved).chain(machines).collect()
    }

    /// Returns the windows whose virtual machine runs, while the program of its vsock has ended.
    fn machines_without_vsock(&self) -> Vec<String> {
        let running: Vec<_> = self.vmms().keys().cloned().collect();
        let devices: Vec<_> = self.devices().values().filter_map(|open| open.device.upgrade()).collect();
        let of_running = devices.iter().filter(|device| running.iter().any(|guest| device.is_of(guest)));
        of_running.filter_map(|device| device.without_vsock()).collect()
    }

    /// Returns the names of windows whose files others removed.
    fn removed_windows(&self) -> BTreeSet<String> {
        let devices = self.devices();
        let windows =
            devices.values().filter_map(|open| open.device.upgrade()).flat_map(|device| device.windows());
        windows.filter(|window| window.is_removed()).map(|window| window.name()).collect()
    }

    /// Follows an event of a guest's VMM.
    pub fn vmm(&self, guest: &str, event: VmmEvent) {
        match event {
            VmmEvent::Runs => _ = self.running().insert(guest.to_owned()),
            VmmEvent::Halts => _ = self.running().remove(guest),
            VmmEvent::Came(process) => _ = self.vmms().insert(guest.to_owned(), process),
            VmmEvent::Left => _ = self.vmms().remove(guest),
            VmmEvent::Stopped => {}
        }
        let devices: Vec<_> = self.devices().values().filter_map(|open| open.device.upgrade()).collect();
        for device in devices.iter().filter(|device| device.is_of(guest)) {
            device.vmm(event);
        }
    }

    fn open_window(&self, spec: &WindowSpec) -> Result<Window, AnyError> {
        let owner = self.window_owner(spec)?;
        let open = self.windows.open(spec, owner, &*self.privileges.sockets)?;
        Ok(Window { open, spec: spec.clone(), owner })
    }

    /// Opens a common window. Without it a device also works; the device gets the window later, when it can
    /// be opened for a different device.
    fn common(&self, spec: Option<&WindowSpec>) -> Option<Arc<OpenWindow>> {
        let spec = spec?;
        let name = spec.name();
        match self.open_window(spec) {
            Ok(window) => {
                self.problems().remove(&name);
                Some(window.open)
            }
            Err(e) => {
                self.problems().insert(name, e.to_string());
                None
            }
        }
    }

    /// Gives devices the common windows that they lack, if other devices have them.
    fn share_commons(&self) {
        let all: Vec<_> = {
            let devices = self.devices();
            let open = devices.values();
            open.filter_map(|open| Some((open.common.clone()?, open.device.upgrade()?))).collect()
        };
        for (spec, device) in &all {
            let has = |(other, its): &(WindowSpec, Arc<Device>)| {
                let is_same = (&other.path, other.bytes) == (&spec.path, spec.bytes);
                if is_same { its.common() } else { None }
            };
            if device.common().is_none()
                && let Some(window) = all.iter().find_map(has)
                && let Err(e) = device.set_common(Some(window))
            {
                tracing::error!("window \"{}\": {e}", spec.name());
            }
        }
    }

    fn window_owner(&self, spec: &WindowSpec) -> Result<Option<(u32, u32)>, AnyError> {
        Ok(spec.owner.as_deref().map(|names| self.privileges.owner("owner", names)).transpose()?)
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vmms(&self) -> MutexGuard<'_, BTreeMap<String, i32>> {
        self.vmms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn problems(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns user and group of a device; `None`: those of the daemon.
    fn owner(&self, spec: &RdmaSpec) -> Result<Option<(u32, u32)>, AnyError> {
        let owner = |names| self.privileges.owner("rdma_owner", names);
        Ok(spec.owner.as_deref().map(owner).transpose()?)
    }

    fn devices(&self) -> MutexGuard<'_, BTreeMap<String, Open>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    struct Everything;

    impl hca::Rules for Everything {
        fn lets(&self, _: u16, _: &hca::RoceFlow, _: u16) -> bool {
            true
        }
    }

    fn verbs() -> Verbs {
        let machines = Arc::new(Machines::new(None));
        Verbs::new(Box::new(Everything), Privileges::here(), Windows::default(), machines)
    }

    fn spec(dir: &Path, owner: Option<&str>) -> RdmaSpec {
        RdmaSpec {
            name: "job".to_owned(),
            socket: dir.join("rdma/job"),
            owner: owner.map(str::to_owned),
            mode: 0o600,
            window: None,
            common: None,
            tap: None,
            adapter: hca::DeviceSpec {
                guest: "vm1".to_owned(),
                vrf: 1,
                mac: [2, 0, 0, 0, 0, 1],
                addresses: vec!["10.1.1.1".parse().unwrap()],
                mtu: 1500,
                limits: hca::Limits::default(),
                trust: None,
                is_watched: false,
                rate: None,
            },
        }
    }

    #[test]
    fn sockets_have_a_directory_and_stale_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        make_directories(dir.path()).unwrap();
        let (verbs, spec) = (verbs(), spec(dir.path(), None));
        drop(verbs.open(&spec, &*sockets::here()).unwrap());
        let mode = std::fs::metadata(dir.path().join("rdma")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(!spec.socket.exists());
        drop(UnixListener::bind(&spec.socket).unwrap());
        drop(verbs.open(&spec, &*sockets::here()).unwrap());
        std::fs::write(&spec.socket, "precious").unwrap();
        let said = verbs.open(&spec, &*sockets::here()).err().unwrap().to_string();
        assert!(said.contains("rdma/job exists and is not a socket"), "{said}");
    }

    #[test]
    fn a_link_in_the_place_of_a_socket_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        make_directories(dir.path()).unwrap();
        let (verbs, spec) = (verbs(), spec(dir.path(), None));
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "").unwrap();
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o640)).unwrap();
        let opened = verbs.open(&spec, &*sockets::here()).unwrap();
        // Somebody who can write the directory could put a link here: its target must keep its mode.
        std::fs::remove_file(&spec.socket).unwrap();
        std::os::unix::fs::symlink(&precious, &spec.socket).unwrap();
        assert!(verbs.update(&RdmaSpec { mode: 0o666, ..spec.clone() }).is_err());
        drop(opened);
        assert!(verbs.open(&spec, &*sockets::here()).is_err());
        let mode = std::fs::metadata(&precious).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, spec.socket.is_symlink()), (0o640, true));
    }

    #[test]
    fn devices_are_described_until_their_port_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        make_directories(dir.path()).unwrap();
        let (verbs, spec) = (verbs(), spec(dir.path(), None));
        let opened = verbs.open(&spec, &*sockets::here()).unwrap();
        assert!(opened.port.status().up);
        assert_eq!((opened.rx.len(), opened.tx.len()), (1, 1));
        let names = || verbs.describe().into_iter().map(|device| device.name).collect::<Vec<_>>();
        assert_eq!(names(), ["job"]);
        let adapter = hca::DeviceSpec { mtu: 9000, ..spec.adapter.clone() };
        assert!(verbs.update(&RdmaSpec { adapter, ..spec.clone() }).is_ok());
        let nobody = RdmaSpec { owner: Some("no-such-user".to_owned()), ..spec };
        let said = verbs.update(&nobody).unwrap_err().to_string();
        assert!(said.contains("rdma_owner: there is no user"), "{said}");
        drop(opened);
        assert!(names().is_empty());
    }
}
