//! Verbs devices: their sockets, the ports by which they send and receive, and their status.

mod device;
mod rules;

use crate::privileges::Privileges;
use control::{RdmaSpec, RdmaStatus};
use device::Device;
use hca::{Answers, Fabric};
use mem::{Opened, Port, PortStatus};
use model::VifId;
use ringport::RingPort;
pub use rules::EngineRules;
use sockets::Sockets;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type AnyError = Box<dyn Error + Send + Sync>;

/// The largest MTU there may be: another one is no reason to open a device anew.
const MAX_MTU: u16 = 9216;
/// Frames that wait in each direction. Memory is taken once they are used.
const SLOTS: u32 = 1024;

/// The open verbs devices, by name.
pub struct Verbs {
    devices: Mutex<BTreeMap<String, Open>>,
    fabric: Arc<Fabric>,
    privileges: Privileges,
}

/// A device, and its port, until that is dropped.
struct Open {
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
        Ok(vec![self.device.listener()?])
    }
}

impl Verbs {
    /// None yet. Which packets may go from device to device the rules say.
    pub fn new(rules: Box<dyn hca::Rules>, privileges: Privileges) -> Self {
        Self { devices: Mutex::default(), fabric: Arc::new(Fabric::new(rules)), privileges }
    }

    /// The executor has the port of an interface now, perhaps of a verbs device.
    pub fn attached(&self, vif: VifId, port: &Arc<dyn Port>) {
        let devices = self.devices();
        let is_its = |open: &&Open| open.port.upgrade().is_some_and(|its| Arc::ptr_eq(&its, port));
        if let Some(device) = devices.values().find(is_its).and_then(|open| open.device.upgrade()) {
            device.set_port(vif.0);
        }
    }

    /// Rules or ways may be others now.
    pub fn review(&self) {
        self.devices().values().filter_map(|open| open.device.upgrade()).for_each(|device| device.review());
    }

    /// Checks what can be known before its place is free.
    ///
    /// # Errors
    /// Its owner has no account.
    pub fn check(&self, spec: &RdmaSpec) -> Result<(), AnyError> {
        self.owner(spec).map(drop)
    }

    /// Opens a device, its socket by `sockets`; it closes when its port is dropped.
    ///
    /// # Errors
    /// Its socket has no place or its owner no account; a system call failed.
    pub fn open(&self, spec: &RdmaSpec, sockets: &dyn Sockets) -> Result<Opened, AnyError> {
        let owner = self.owner(spec)?;
        let (opened, uplink, downlink) = ringport::open(&RingPort { mtu: MAX_MTU, slots: SLOTS })?;
        let device = Arc::new(Device::open(spec, owner, (&self.fabric, sockets), (uplink, downlink))?);
        tracing::info!("verbs device of {}: socket {}", spec.adapter.guest, spec.socket.display());
        let port: Arc<dyn Port> = Arc::new(DevicePort { port: opened.port, device: device.clone() });
        let open = Open { device: Arc::downgrade(&device), port: Arc::downgrade(&port) };
        self.devices().insert(spec.name.clone(), open);
        Ok(Opened { port, ..opened })
    }

    /// Makes an open device be another, which the same clients may use.
    ///
    /// # Errors
    /// Its owner has no account.
    pub fn update(&self, spec: &RdmaSpec) -> Result<(), AnyError> {
        let owner = self.owner(spec)?;
        let device = self.devices().get(&spec.name).and_then(|open| open.device.upgrade());
        device.map_or(Ok(()), |device| device.update(spec, owner))?;
        // Others have ways to it.
        self.review();
        Ok(())
    }

    /// What the devices tell of themselves.
    pub fn describe(&self) -> Vec<RdmaStatus> {
        // A device takes its time to answer, and meanwhile others may come and go.
        let devices: Vec<_> = {
            let mut devices = self.devices();
            devices.retain(|_, open| open.device.strong_count() > 0);
            devices.iter().filter_map(|(name, open)| Some((name.clone(), open.device.upgrade()?))).collect()
        };
        // All are asked at once, so that many that do not answer take no longer than one.
        let deadline = Answers::deadline();
        let asked: Vec<_> = devices.iter().map(|(_, device)| device.ask()).collect();
        let answered = devices.into_iter().zip(asked);
        answered.map(|((name, device), answers)| device.describe(name, answers.wait(deadline))).collect()
    }

    /// User and group that a device is for; `None`: of whoever started the daemon.
    fn owner(&self, spec: &RdmaSpec) -> Result<Option<(u32, u32)>, AnyError> {
        let owner = spec.owner.as_deref().map(|names| self.privileges.owner(names));
        Ok(owner.transpose().map_err(|e| format!("rdma_{e}"))?)
    }

    fn devices(&self) -> MutexGuard<'_, BTreeMap<String, Open>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the directory of the devices' sockets.
///
/// # Errors
/// What the kernel says.
pub fn make_directory(run_dir: &Path) -> io::Result<()> {
    let dir = run_dir.join(control::RDMA_DIR);
    match std::fs::create_dir(&dir) {
        // Whatever the umask: the owners of the sockets must be able to enter.
        Ok(()) => std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    struct Everything;

    impl hca::Rules for Everything {
        fn lets(&self, _: u16, _: &hca::RoceFlow, _: u16) -> bool {
            true
        }
    }

    fn spec(dir: &Path, owner: Option<&str>) -> RdmaSpec {
        RdmaSpec {
            name: "job".to_owned(),
            socket: dir.join("rdma/job"),
            owner: owner.map(str::to_owned),
            mode: 0o600,
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
        make_directory(dir.path()).unwrap();
        let (verbs, spec) = (Verbs::new(Box::new(Everything), Privileges::here()), spec(dir.path(), None));
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
        make_directory(dir.path()).unwrap();
        let (verbs, spec) = (Verbs::new(Box::new(Everything), Privileges::here()), spec(dir.path(), None));
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
        make_directory(dir.path()).unwrap();
        let (verbs, spec) = (Verbs::new(Box::new(Everything), Privileges::here()), spec(dir.path(), None));
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
