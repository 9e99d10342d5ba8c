//! Verbs devices: their specifications, and the status of open ones.

use crate::compile::policer;
use crate::windows::{WindowSpec, WindowStatus};
use config::{CommonWindows, Connection, Guest, RdmaLimits, Verbs};
use hca::{ClientDescription, CmDescription, DeviceSpec, HolderDescription, Limits, Rate};
use model::{MeterConfig, Vrf};
use std::path::{Path, PathBuf};

/// Directory of the sockets of verbs devices, in the run-dir.
pub const RDMA_DIR: &str = "rdma";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSpec {
    /// Name of the device and of its socket.
    pub name: String,
    /// Path of the socket on which it takes clients.
    pub socket: PathBuf,
    /// `user` or `user:group` that may open it; `None`: the daemon's user.
    pub owner: Option<String>,
    pub mode: u32,
    /// The guest's tap, if it has one.
    pub tap: Option<String>,
    /// The window of its virtual machine alone.
    pub window: Option<WindowSpec>,
    /// The window that its virtual machine shares with others of its trust.
    pub common: Option<WindowSpec>,
    pub adapter: DeviceSpec,
}

impl RdmaSpec {
    /// Returns the verbs device of a guest, if it has one. `commons`: the windows of trusts.
    pub(crate) fn of(
        guest: &Guest,
        run_dir: &Path,
        (vrf, mtu): (Vrf, u16),
        commons: &CommonWindows,
    ) -> Option<Self> {
        let Verbs { name, owner, limits: allowed } = guest.verbs.clone()?;
        let group = owner.as_ref().is_some_and(|owner| owner.contains(':'));
        Some(Self {
            socket: run_dir.join(RDMA_DIR).join(&name),
            name,
            owner,
            mode: if group { 0o660 } else { 0o600 },
            window: WindowSpec::own(guest, run_dir),
            common: WindowSpec::common(guest, run_dir, commons),
            tap: match &guest.connection {
                Connection::Tap(tap) => Some(tap.device.clone()),
                _ => None,
            },
            adapter: DeviceSpec {
                guest: guest.name.clone(),
                vrf: vrf.0.into(),
                mac: guest.mac?.0,
                addresses: guest.addresses.clone(),
                mtu,
                limits: limits(allowed),
                trust: guest.rdma_trust.clone(),
                // With a rate or a mirror, all traffic has to pass the workers.
                is_watched: guest.rate.is_some() || guest.mirror.is_some(),
                rate: guest.rate.map(|rate| {
                    let MeterConfig { bits_per_second, burst_bytes } = policer(rate);
                    // The other half of the burst is for sockets.
                    Rate { bits_per_second, burst_bytes: burst_bytes / 2 }
                }),
            },
        })
    }

    /// Is true if clients of a device opened with the other specification can go on with this one.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        let (a, b) = (&self.adapter, &other.adapter);
        let same = |a: &Option<WindowSpec>, b: &Option<WindowSpec>| match (a, b) {
            (Some(a), Some(b)) => a.is_same(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        same(&self.window, &other.window)
            && (&a.guest, &self.socket, a.vrf, a.mac) == (&b.guest, &other.socket, b.vrf, b.mac)
    }
}

fn limits(of: RdmaLimits) -> Limits {
    Limits {
        qps: of.qps,
        mrs: of.mrs,
        registered: u64::from(of.registered_mb) << 20,
        queues: u64::from(of.queues_mb) << 20,
        connections: of.connections,
    }
}

#[derive(Clone, Debug, Default)]
pub struct RdmaStatus {
    pub name: String,
    pub clients: Vec<ClientDescription>,
    /// Counters, each with its name in [`hca::COUNTERS`].
    pub counters: Vec<(&'static str, u64)>,
    /// The connection manager's identifiers of its clients.
    pub connections: Vec<CmDescription>,
    /// Processes that may have memory of its clients.
    pub holders: Vec<HolderDescription>,
    /// The window of its virtual machine alone.
    pub window: Option<WindowStatus>,
    /// The window that its virtual machine shares with others.
    pub common: Option<WindowStatus>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn spec(rdma: &str) -> Option<RdmaSpec> {
        let text = format!(
            "[[guest]]\nname = \"vm1\"\nnetwork = \"blue\"\nkind = \"vhost\"\nmac = \"02:00:00:00:00:01\"\n\
             addresses = [\"10.1.1.1\", \"fd00:1::1\"]\n{rdma}"
        );
        let objects = config::parse_objects(&text).unwrap();
        let config::Object::Guest(guest) = &objects[0] else { panic!("a guest") };
        let commons = CommonWindows::of(std::iter::once(&**guest));
        RdmaSpec::of(guest, Path::new("/run/x"), (Vrf(7), 1450), &commons)
    }

    #[test]
    fn gids_are_the_guests_addresses() {
        let spec = spec("rdma = \"job\"").unwrap();
        let gids: Vec<String> = spec.adapter.gids().iter().map(ToString::to_string).collect();
        assert_eq!(gids, ["::ffff:10.1.1.1", "::ffff:10.1.1.1", "fd00:1::1", "fe80::ff:fe00:1"]);
        assert_eq!(spec.socket, Path::new("/run/x/rdma/job"));
        assert!(self::spec("").is_none());
    }

    #[test]
    fn a_group_that_is_named_may_open_it() {
        let mode = |owner: &str| spec(&format!("rdma = \"job\"\nrdma_owner = \"{owner}\"")).unwrap().mode;
        assert_eq!((mode("1000"), mode("1000:100")), (0o600, 0o660));
    }

    #[test]
    fn windows_are_the_vmms_files() {
        let vm = "rdma = \"job\"\nowner = \"qemu:kvm\"\nwindow_mb = 64\nrdma_trust = \"t\"\n";
        let shared = spec(vm).unwrap();
        let [own, common] = [&shared.window, &shared.common].map(|window| window.clone().unwrap());
        let path = Path::new("/run/x/rdma/vm");
        assert_eq!((own.path.clone(), own.bytes, own.mode), (path.join("job"), 64 << 20, 0o660));
        assert_eq!((own.owner.as_deref(), own.socket()), (Some("qemu:kvm"), path.join("job.vsock_4791")));
        assert_eq!((common.path.clone(), common.name()), (path.join("trust-t"), "trust-t".to_owned()));
        let watched = spec(&format!("{vm}rate = {{ mbps = 1 }}")).unwrap();
        assert!(watched.window.is_some() && watched.common.is_none());
        // The common window may come and go.
        assert!(shared.is_same_device(&watched));
        assert!(!shared.is_same_device(&spec(&vm.replace("64", "66")).unwrap()));
        assert!(shared.is_same_device(&spec(&vm.replace("qemu:kvm", "qemu")).unwrap()));
    }

    #[test]
    fn clients_stay_unless_the_guest_becomes_another() {
        let one = spec("rdma = \"job\"").unwrap();
        let limited = spec("rdma = \"job\"\nrdma_limits = { qps = 3 }\nrate = { mbps = 1 }").unwrap();
        let with = |adapter| RdmaSpec { adapter, ..one.clone() };
        assert!(limited.adapter.is_watched && !one.adapter.is_watched);
        assert!(one.is_same_device(&limited) && one != limited);
        assert!(one.is_same_device(&with(DeviceSpec {
            mtu: 9000,
            addresses: Vec::new(),
            ..one.adapter.clone()
        })));
        assert!(!one.is_same_device(&spec("rdma = \"other\"").unwrap()));
        assert!(!one.is_same_device(&with(DeviceSpec { vrf: 8, ..one.adapter.clone() })));
    }
}
