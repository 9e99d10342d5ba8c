//! Detects whether the host's kernel also forwards the packets that arrive by a wire.

use config::{Way, Wire};
use std::path::Path;

const SETTINGS: &str = "/proc/sys/net";

/// Returns a warning if the kernel also forwards packets that come in by a wire of the driver `af-packet`.
/// The device remains the kernel's, which gets a copy of each frame. `None` also if the device does not
/// exist.
#[must_use]
pub fn forwarding(wire: &Wire) -> Option<String> {
    forwarding_by(Path::new(SETTINGS), wire)
}

fn forwarding_by(settings: &Path, wire: &Wire) -> Option<String> {
    // It forwards no packets to its own addresses.
    let Way::AfPacket(device) = &wire.way else { return None };
    if wire.shared {
        return None;
    }
    // The kernel forwards packets from an IPv6 device if forwarding is on for all devices.
    let keys = [format!("ipv4/conf/{}/forwarding", device), "ipv6/conf/all/forwarding".to_owned()];
    let is_on = |key: &&String| {
        std::fs::read_to_string(settings.join(key)).is_ok_and(|value| !matches!(value.trim(), "" | "0"))
    };
    let on: Vec<_> = keys.iter().filter(is_on).map(|key| format!("{SETTINGS}/{key}")).collect();
    if on.is_empty() {
        return None;
    }
    Some(format!(
        "the kernel forwards what comes in by \"{device}\", tunnel packets too, which then arrive twice or are refused; \
         write 0 to {}, or use driver \"af-xdp\"",
        on.join(" and "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Mode;

    fn wire(way: fn(String) -> Way) -> Wire {
        let (addresses, gateway) = (Vec::new(), Vec::new());
        Wire {
            name: "up0".to_owned(),
            mode: Mode::Vrouter,
            way: way("va".to_owned()),
            addresses,
            gateway,
            mtu: 1500,
            shared: false,
        }
    }

    #[test]
    fn a_kernel_that_forwards_is_told_of_by_family_and_device() {
        let settings = tempfile::tempdir().unwrap();
        let set = |key: &str, value: &str| {
            let path = settings.path().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        let told = |way| forwarding_by(settings.path(), &wire(way));
        assert_eq!(told(Way::AfPacket), None, "there is no such device");
        set("ipv4/conf/va/forwarding", "0\n");
        set("ipv4/conf/other/forwarding", "1\n");
        set("ipv6/conf/all/forwarding", "0\n");
        assert_eq!(told(Way::AfPacket), None);
        set("ipv4/conf/va/forwarding", "1\n");
        let text = told(Way::AfPacket).unwrap();
        assert!(text.contains("write 0 to /proc/sys/net/ipv4/conf/va/forwarding, or"), "{text}");
        assert_eq!(told(Way::AfXdp), None, "it takes its frames from the kernel");
        set("ipv6/conf/all/forwarding", "1\n");
        let text = told(Way::AfPacket).unwrap();
        assert!(text.contains("/va/forwarding and /proc/sys/net/ipv6/conf/all/forwarding"), "{text}");
    }
}
