//! The registers of a PCI device, as a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens the file of BAR `number` of the device at `address`, as `0000:01:00.0`.
///
/// # Errors
/// No such device, no permission; or a driver of the kernel has the device: by the registers of a disk or a NIC in use,
/// one reads and writes all of the host's memory. A device that no driver has cannot reach memory (its DMA is off).
pub fn open_bar(address: &str, number: u8) -> io::Result<File> {
    open(&Path::new("/sys/bus/pci/devices").join(address), number)
}

fn open(device: &Path, number: u8) -> io::Result<File> {
    match device.join("driver").symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(_) => {
            let device = device.display();
            return Err(io::Error::other(format!("a driver of the kernel has {device}: unbind it first")));
        }
    }
    OpenOptions::new().read(true).write(true).open(device.join(format!("resource{number}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::open;

    #[test]
    fn devices_with_a_driver_are_refused() {
        let device = tempfile::tempdir().unwrap();
        std::fs::write(device.path().join("resource2"), [0; 16]).unwrap();
        open(device.path(), 2).unwrap();
        std::os::unix::fs::symlink("../../drivers/nvme", device.path().join("driver")).unwrap();
        let refused = open(device.path(), 2).unwrap_err().to_string();
        assert!(refused.contains("unbind it"), "{refused}");
    }
}
