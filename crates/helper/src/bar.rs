//! The registers of a card, as a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// The number of the BAR with a card's registers (docs/card.md). A different BAR has the registers of the
/// card's DMA engine.
pub(crate) const REGISTERS: u8 = 2;

/// The card's vendor: Xilinx, according to pci.ids.
const VENDOR: &str = "0x10ee";

/// Opens the file of BAR `number` of the card at `address`, as `0000:01:00.0`. Other devices are refused, because
/// their registers may give access to all of the machine's memory.
///
/// # Errors
/// If there is no such device, it is not a card, permission is missing, or a kernel driver has the device: through the
/// registers of a disk or a NIC in use, one can read and write all of the host's memory. A device without a driver
/// cannot reach memory (its DMA is off).
pub fn open_bar(address: &str, number: u8) -> io::Result<File> {
    open(&Path::new("/sys/bus/pci/devices").join(address), number)
}

fn open(device: &Path, number: u8) -> io::Result<File> {
    let refused = |why: &str| Err(io::Error::other(format!("{}: {why}", device.display())));
    if std::fs::read_to_string(device.join("vendor"))?.trim_end() != VENDOR {
        return refused("not a card");
    }
    match device.join("driver").symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(_) => return refused("a kernel driver is bound to it: unbind the driver first"),
    }
    OpenOptions::new().read(true).write(true).open(device.join(format!("resource{number}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{VENDOR, open};

    #[test]
    fn only_cards_without_a_driver_are_opened() {
        let device = tempfile::tempdir().unwrap();
        std::fs::write(device.path().join("resource2"), [0; 16]).unwrap();
        std::fs::write(device.path().join("vendor"), "0x8086\n").unwrap();
        assert!(open(device.path(), 2).unwrap_err().to_string().contains("not a card"));
        std::fs::write(device.path().join("vendor"), format!("{VENDOR}\n")).unwrap();
        open(device.path(), 2).unwrap();
        std::os::unix::fs::symlink("../../drivers/nvme", device.path().join("driver")).unwrap();
        assert!(open(device.path(), 2).unwrap_err().to_string().contains("unbind the driver"));
    }
}
