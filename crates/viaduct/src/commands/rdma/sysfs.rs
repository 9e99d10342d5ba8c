//! Files for verbs devices as the kernel would have them in `/sys/class`, with the contents that programs
//! look for (Linux, Documentation/ABI/stable/sysfs-class-infiniband).

use api::v1::RdmaDevice;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file. A newline ends its text.
    File(String),
    Link(PathBuf),
}

/// Entries by their paths below `/sys`.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// The classes in a tree. Their directories are never removed, because others mount them.
pub const CLASSES: [&str; 3] = ["infiniband", "infiniband_verbs", "infiniband_mad"];

/// A vendor ID that no PCI device has, since there is no PCI device.
const NO_VENDOR: &str = "0xffff";
/// Device number of `/dev/null`, which stands in for `/dev/infiniband/uverbs*`.
const NULL: &str = "1:3";
/// `IBV_PORT_CM_SUP`, `IBV_PORT_IP_BASED_GIDS`, as `ibv_query_port` reports.
const PORT_CAPABILITIES: &str = "0x04010000";

/// The kernel's counters of a port, and our counters with the same meaning. The standard counts data in words
/// of four bytes (IBTA, 16.1.3.5).
const PORT_COUNTERS: [(&str, u64, &[&str]); 20] = [
    ("port_xmit_packets", 1, &["sent_pkts"]),
    ("unicast_xmit_packets", 1, &["sent_pkts"]),
    ("port_xmit_data", 4, &["sent_bytes"]),
    ("port_rcv_packets", 1, &["rcvd_pkts"]),
    ("unicast_rcv_packets", 1, &["rcvd_pkts"]),
    ("port_rcv_data", 4, &["rcvd_bytes"]),
    ("port_xmit_discards", 1, &["send_err"]),
    ("port_rcv_errors", 1, &["rcvd_pkts_malformed", "rx_icrc_encapsulated"]),
    ("multicast_xmit_packets", 1, &[]),
    ("multicast_rcv_packets", 1, &[]),
    ("port_xmit_wait", 1, &[]),
    ("port_xmit_constraint_errors", 1, &[]),
    ("port_rcv_constraint_errors", 1, &[]),
    ("port_rcv_remote_physical_errors", 1, &[]),
    ("port_rcv_switch_relay_errors", 1, &[]),
    ("symbol_error", 1, &[]),
    ("link_error_recovery", 1, &[]),
    ("link_downed", 1, &[]),
    ("local_link_integrity_errors", 1, &[]),
    ("VL15_dropped", 1, &[]),
];

/// Makes the tree of these devices. The first is `viaduct0`, as for a library that gets their sockets in this
/// order. A device that does not exist is left out, but keeps its number.
pub fn tree<'a>(devices: impl Iterator<Item = Option<&'a RdmaDevice>>, version: &str) -> Tree {
    let mut tree = Tree::new();
    // Versions of the interfaces between programs and kernel: uverbs, and umad, which `ibstat` looks for.
    put(&mut tree, Path::new("class/infiniband_verbs/abi_version"), "6");
    put(&mut tree, Path::new("class/infiniband_mad/abi_version"), "5");
    for (index, device) in devices.enumerate() {
        if let Some(device) = device {
            add_device(&mut tree, &format!("viaduct{index}"), device, version);
            add_uverbs(&mut tree, index);
        }
    }
    tree
}

fn put(tree: &mut Tree, at: &Path, text: &str) {
    tree.insert(at.to_owned(), Entry::File(format!("{text}\n")));
}

fn add_device(tree: &mut Tree, name: &str, device: &RdmaDevice, version: &str) {
    let dir = Path::new("class/infiniband").join(name);
    let gids: Vec<Ipv6Addr> = device.gids.iter().filter_map(|gid| gid.parse().ok()).collect();
    // The interface identifier of the link-local GID (RFC 4291, appendix A).
    let guid = gids
        .iter()
        .find(|gid| gid.is_unicast_link_local())
        .map(|gid| groups(&gid.segments()[4..]))
        .unwrap_or_default();
    for (file, text) in [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", &device.guest),
        ("fw_ver", version),
        ("hw_rev", "0"),
        ("hca_type", "viaduct"),
        ("board_id", "viaduct"),
        // The device is near no CPU: programs' threads in the daemon run on any.
        ("device/numa_node", "-1"),
        ("device/vendor", NO_VENDOR),
        ("device/device", "0x0000"),
        ("device/subsystem_vendor", NO_VENDOR),
        ("device/subsystem_device", "0x0000"),
    ] {
        put(tree, &dir.join(file), text);
    }
    if let Some(net_device) = &device.net_device {
        let there = Path::new("/sys/class/net").join(net_device);
        tree.insert(dir.join("device/net").join(net_device), Entry::Link(there));
    }
    add_port(tree, &dir.join("ports/1"), device, &gids);
}

fn add_port(tree: &mut Tree, dir: &Path, device: &RdmaDevice, gids: &[Ipv6Addr]) {
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("link_layer", "Ethernet"),
        ("cap_mask", PORT_CAPABILITIES),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("pkeys/0", "0xffff"),
    ] {
        put(tree, &dir.join(file), text);
    }
    for (index, gid) in gids.iter().enumerate() {
        put(tree, &dir.join(format!("gids/{index}")), &groups(&gid.segments()));
        put(tree, &dir.join(format!("gid_attrs/types/{index}")), "RoCE v2");
        if let Some(net_device) = &device.net_device {
            put(tree, &dir.join(format!("gid_attrs/ndevs/{index}")), net_device);
        }
    }
    let counted = |name: &&str| device.counters.iter().find(|counter| counter.name == **name);
    for (file, unit, of) in PORT_COUNTERS {
        let sum: u64 = of.iter().filter_map(counted).map(|counter| counter.value).sum();
        put(tree, &dir.join("counters").join(file), &(sum / unit).to_string());
    }
    for counter in &device.counters {
        put(tree, &dir.join("hw_counters").join(&counter.name), &counter.value.to_string());
    }
}

fn add_uverbs(tree: &mut Tree, index: usize) {
    let dir = Path::new("class/infiniband_verbs").join(format!("uverbs{index}"));
    put(tree, &dir.join("ibdev"), &format!("viaduct{index}"));
    put(tree, &dir.join("abi_version"), "1");
    put(tree, &dir.join("dev"), NULL);
    let device = Path::new("../../infiniband").join(format!("viaduct{index}/device"));
    tree.insert(dir.join("device"), Entry::Link(device));
}

/// Writes a GID or GUID as the kernel does, with all digits of each group.
fn groups(of: &[u16]) -> String {
    of.iter().map(|group| format!("{group:04x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use api::v1::RdmaCounter;

    fn device(guest: &str) -> RdmaDevice {
        let counter = |(name, value): (&str, u64)| RdmaCounter { name: name.to_owned(), value };
        RdmaDevice {
            guest: guest.to_owned(),
            gids: ["::ffff:10.1.1.1", "::ffff:10.1.1.1", "fe80::ff:fe00:1"].map(str::to_owned).to_vec(),
            net_device: Some("tap7".to_owned()),
            counters: [("sent_bytes", 4096), ("rcvd_pkts_malformed", 2), ("rx_icrc_encapsulated", 3)]
                .map(counter)
                .to_vec(),
            ..RdmaDevice::default()
        }
    }

    fn text(tree: &Tree, path: &str) -> String {
        match tree.get(&Path::new("class").join(path)) {
            Some(Entry::File(text)) => text.strip_suffix('\n').unwrap().to_owned(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn gids_have_all_their_digits_and_a_type() {
        let tree = tree([Some(&device("c1"))].into_iter(), "1.2");
        let of = |file: &str| text(&tree, &format!("infiniband/viaduct0/{file}"));
        assert_eq!((of("node_guid"), of("node_desc")), ("0000:00ff:fe00:0001".to_owned(), "c1".to_owned()));
        for index in 0..2 {
            assert_eq!(of(&format!("ports/1/gids/{index}")), "0000:0000:0000:0000:0000:ffff:0a01:0101");
        }
        assert_eq!(of("ports/1/gids/2"), "fe80:0000:0000:0000:0000:00ff:fe00:0001");
        assert_eq!(
            (of("ports/1/gid_attrs/types/1"), of("ports/1/gid_attrs/ndevs/1")),
            ("RoCE v2".to_owned(), "tap7".to_owned())
        );
        assert!(!tree.contains_key(Path::new("class/infiniband/viaduct0/ports/1/gids/3")));
    }

    #[test]
    fn counters_are_those_of_the_standard_and_ours() {
        let tree = tree([Some(&device("c1"))].into_iter(), "1.2");
        let of = |file: &str| text(&tree, &format!("infiniband/viaduct0/ports/1/{file}"));
        assert_eq!(
            (of("counters/port_xmit_data"), of("hw_counters/sent_bytes")),
            ("1024".to_owned(), "4096".to_owned())
        );
        assert_eq!(
            (of("counters/port_rcv_errors"), of("counters/link_downed")),
            ("5".to_owned(), "0".to_owned())
        );
    }

    #[test]
    fn who_is_not_there_keeps_its_number() {
        let (one, other) = (device("c1"), device("c3"));
        let tree = tree([Some(&one), None, Some(&other)].into_iter(), "1.2");
        assert_eq!(text(&tree, "infiniband/viaduct2/node_desc"), "c3");
        assert_eq!(text(&tree, "infiniband_verbs/uverbs2/ibdev"), "viaduct2");
        assert!(!tree.keys().any(|path| path.to_string_lossy().contains("viaduct1")));
        let link = &tree[Path::new("class/infiniband_verbs/uverbs2/device")];
        assert_eq!(*link, Entry::Link("../../infiniband/viaduct2/device".into()));
    }
}
