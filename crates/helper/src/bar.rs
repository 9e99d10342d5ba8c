//! The registers of a PCI device, as a file.

use std::fs::{File, OpenOptions};
use std::io;

/// Opens the file of BAR `number` of the device at `address`, as `0000:01:00.0`.
///
/// # Errors
/// No such device, no permission.
pub fn open_bar(address: &str, number: u8) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/sys/bus/pci/devices/{address}/resource{number}"))
}
