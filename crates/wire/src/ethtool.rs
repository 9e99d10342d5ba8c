//! Queries about a device to its driver, through ethtool's ioctl (linux/ethtool.h).

use crate::device::Device;
use std::io;

const GDRVINFO: u32 = 0x03;
const GTXCSUM: u32 = 0x16;
const GCHANNELS: u32 = 0x3c;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub rx: u32,
    pub tx: u32,
}

/// Counts the queues that the device uses now: one of each kind if its driver doesn't report them.
pub(crate) fn channels(device: &Device) -> io::Result<Channels> {
    // The command, four limits, then counts: receive, transmit, other, combined.
    let mut words = [0u32; 9];
    words[0] = GCHANNELS;
    // SAFETY: answers a struct ethtool_channels, nine words.
    match unsafe { device.ethtool(&mut words) } {
        Ok(()) => Ok(Channels { rx: (words[5] + words[8]).max(1), tx: (words[6] + words[8]).max(1) }),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Channels { rx: 1, tx: 1 }),
        Err(error) => Err(error),
    }
}

/// Returns whether the device is one end of a veth pair.
pub(crate) fn is_veth(device: &Device) -> bool {
    // The command, then the driver's name.
    let mut words = [0u32; 49];
    words[0] = GDRVINFO;
    // SAFETY: answers a struct ethtool_drvinfo, 196 bytes.
    let known = unsafe { device.ethtool(&mut words) }.is_ok();
    known && words[1].to_ne_bytes() == *b"veth" && words[2].to_ne_bytes()[0] == 0
}

/// Returns whether the device completes the checksums of packets that it sends. The kernel then leaves them unfinished.
pub(crate) fn finishes_checksums(device: &Device) -> io::Result<bool> {
    let mut words = [GTXCSUM, 0];
    // SAFETY: answers a struct ethtool_value, two words.
    unsafe { device.ethtool(&mut words)? };
    Ok(words[1] != 0)
}
