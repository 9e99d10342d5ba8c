//! The registers of a card, as a file.

use std::fs::{File, OpenOptions};
use std::io;

/// The BAR in which a card's registers lie (docs/card.md). Those of its DMA engine lie in another.
pub(crate) const REGISTERS: u8 = 2;

/// Who made the card: Xilinx, as pci.ids has it.
const VENDOR: &str = "0x10ee";

/// Opens the file of BAR `number` of the card at `address`, as `0000:01:00.0`. Whoever has the registers of any other device
/// may have all of the machine's memory.
///
/// # Errors
/// No such device, not a card, no permission.
pub fn open_bar(address: &str, number: u8) -> io::Result<File> {
    let device = format!("/sys/bus/pci/devices/{address}");
    let vendor = std::fs::read_to_string(format!("{device}/vendor"))?;
    if vendor.trim_end() != VENDOR {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the device at {address} is not a card"),
        ));
    }
    OpenOptions::new().read(true).write(true).open(format!("{device}/resource{number}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_cards_are_opened() {
        let Ok(devices) = std::fs::read_dir("/sys/bus/pci/devices") else { return };
        for device in devices {
            let device = device.unwrap();
            let vendor = std::fs::read_to_string(device.path().join("vendor")).unwrap();
            let opened = open_bar(device.file_name().to_str().unwrap(), REGISTERS);
            assert!(opened.is_err() || vendor.trim_end() == VENDOR, "{device:?}");
        }
    }
}
