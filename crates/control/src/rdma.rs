//! Verbs devices: what is to be opened.

use crate::compile::policer;
use config::{Guest, GuestKind, RdmaLimits};
use model::{MeterConfig, Vrf};
use packet::Mac;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Directory of the sockets of verbs devices, in the run-dir.
pub const RDMA_DIR: &str = "rdma";

/// What a verbs device counts, with names as `rdma statistic` has them for adapters, and what they mean.
pub const RDMA_COUNTERS: [(&str, &str); 30] = [
    ("sent_pkts", "Packets sent, and messages that programs brought to peers with which they share memory."),
    ("sent_bytes", "Bytes sent."),
    ("rcvd_pkts", "Packets received, and messages that such peers brought."),
    ("rcvd_bytes", "Bytes received."),
    ("send_err", "Packets that could not be sent."),
    ("rcvd_pkts_unknown_qp", "Packets received for a queue pair that is not there."),
    (
        "rcvd_pkts_unknown_group",
        "Datagrams received for a multicast group that no queue pair is attached to.",
    ),
    (
        "rcvd_pkts_no_room",
        "Packets received, and copies of them, for a program that does not take what waits.",
    ),
    (
        "rcvd_pkts_multicast_limit",
        "Datagrams received for multicast groups beyond the copies that are made in a second.",
    ),
    ("rcvd_pkts_forged", "Requests to the connection manager from elsewhere under the guest's own address."),
    (
        "rcvd_pkts_not_taken",
        "Packets received for a queue pair that is not ready, or that are not of its service or peer.",
    ),
    ("rcvd_pkts_malformed", "Packets received that are no RoCEv2."),
    ("rx_icrc_encapsulated", "Packets received with a wrong ICRC."),
    ("out_of_sequence", "Packets received out of sequence."),
    ("duplicate_request", "Requests received again."),
    ("packet_seq_err", "NAKs received for packets out of sequence."),
    ("implied_nak_seq_err", "Answers received that imply the loss of an earlier one."),
    ("local_ack_timeout_err", "Times an acknowledgement did not come in time."),
    ("rnr_nak_retry_err", "NAKs received because the other end had no receive request posted."),
    ("rnr_nak", "NAKs sent because no receive request was posted."),
    ("remote_access_errors", "Requests received that were refused access to memory."),
    ("qkey_violations", "Datagrams received with a wrong Q_Key."),
    ("pkey_violations", "Datagrams received of another partition."),
    ("out_of_buffer", "Datagrams received while no receive request was posted."),
    ("resp_local_length_error", "Datagrams received that were longer than the receive request."),
    ("req_cqe_error", "Requests completed in error."),
    ("resp_cqe_error", "Receive requests completed in error."),
    ("np_cnp_sent", "Congestion notifications sent."),
    ("rp_cnp_handled", "Congestion notifications received."),
    ("atomic_busy", "Atomic requests left without an answer, since others were at work for too long."),
];

/// A verbs device to be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSpec {
    /// The guest's name.
    pub guest: String,
    /// The device's name: that of its socket.
    pub name: String,
    /// Path of the socket on which it takes clients.
    pub socket: PathBuf,
    /// `user` or `user:group` that may open it; `None`: the daemon's user.
    pub owner: Option<String>,
    /// Mode of the socket.
    pub mode: u32,
    /// The guest's network.
    pub vrf: Vrf,
    /// The guest's MAC, which it sends from.
    pub mac: Mac,
    /// The guest's tap, if it has one.
    pub tap: Option<String>,
    /// The guest's addresses, which it sends from.
    pub addresses: Vec<IpAddr>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// What its clients may have together.
    pub limits: RdmaLimits,
    /// Devices of one network, user and trust may share memory directly.
    pub trust: Option<String>,
    /// Whether what the guest sends is metered or copied to another: all of it has to go by the workers then.
    pub watched: bool,
    /// What the guest may send.
    pub rate: Option<MeterConfig>,
}

impl RdmaSpec {
    /// The verbs device of a guest, if it has one.
    pub(crate) fn of(guest: &Guest, run_dir: &Path, vrf: Vrf, mtu: u16) -> Option<Self> {
        let name = guest.rdma.clone()?;
        let group = guest.rdma_owner.as_ref().is_some_and(|owner| owner.contains(':'));
        Some(Self {
            guest: guest.name.clone(),
            socket: run_dir.join(RDMA_DIR).join(&name),
            name,
            owner: guest.rdma_owner.clone(),
            mode: if group { 0o660 } else { 0o600 },
            vrf,
            mac: guest.mac?,
            tap: guest.device.clone().filter(|_| guest.kind == GuestKind::Tap),
            addresses: guest.addresses.clone(),
            mtu,
            limits: guest.rdma_limits.unwrap_or_default(),
            trust: guest.rdma_trust.clone(),
            watched: guest.rate.is_some() || guest.mirror.is_some(),
            rate: guest.rate.map(policer),
        })
    }

    /// Whether clients of a device opened by the other specification can go on with this one.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        (&self.guest, &self.socket, self.vrf, self.mac) == (&other.guest, &other.socket, other.vrf, other.mac)
    }

    /// Its GIDs by their index: the MAC's link-local address, then the guest's addresses, IPv4 ones mapped (IBTA,
    /// annex A17).
    #[must_use]
    pub fn gids(&self) -> Vec<Ipv6Addr> {
        let mapped = |addr: &IpAddr| match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        };
        std::iter::once(self.mac.link_local()).chain(self.addresses.iter().map(mapped)).collect()
    }
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
        RdmaSpec::of(guest, Path::new("/run/x"), Vrf(7), 1450)
    }

    #[test]
    fn gids_are_the_guests_addresses() {
        let spec = spec("rdma = \"job\"").unwrap();
        let gids: Vec<String> = spec.gids().iter().map(ToString::to_string).collect();
        assert_eq!(gids, ["fe80::ff:fe00:1", "::ffff:10.1.1.1", "fd00:1::1"]);
        assert_eq!(spec.socket, Path::new("/run/x/rdma/job"));
        assert!(self::spec("").is_none());
    }

    #[test]
    fn a_group_that_is_named_may_open_it() {
        let mode = |owner: &str| spec(&format!("rdma = \"job\"\nrdma_owner = \"{owner}\"")).unwrap().mode;
        assert_eq!((mode("1000"), mode("1000:100")), (0o600, 0o660));
    }

    #[test]
    fn clients_stay_unless_the_guest_becomes_another() {
        let one = spec("rdma = \"job\"").unwrap();
        let limited = spec("rdma = \"job\"\nrdma_limits = { qps = 3 }\nrate = { mbps = 1 }").unwrap();
        assert!(limited.watched && !one.watched);
        assert!(one.is_same_device(&limited) && one != limited);
        assert!(one.is_same_device(&RdmaSpec { mtu: 9000, addresses: Vec::new(), ..one.clone() }));
        assert!(!one.is_same_device(&spec("rdma = \"other\"").unwrap()));
        assert!(!one.is_same_device(&RdmaSpec { vrf: Vrf(8), ..one.clone() }));
    }
}
