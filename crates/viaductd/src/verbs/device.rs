//! One device. This build serves no clients: the device has its port, and neither sends nor takes what comes.

use super::AnyError;
use api::v1::{RdmaCounter, RdmaDevice, RdmaReply, RdmaTable};
use control::RdmaSpec;
use rdmaport::{Downlink, Uplink};

/// A verbs device.
pub struct Device {
    uplink: Uplink,
    _downlink: Downlink,
}

impl Device {
    /// Opens it, for this user and group.
    #[allow(clippy::unnecessary_wraps, reason = "a socket may fail")]
    pub fn open(
        spec: &RdmaSpec,
        _owner: Option<(u32, u32)>,
        uplink: Uplink,
        downlink: Downlink,
    ) -> Result<Self, AnyError> {
        tracing::warn!("verbs device of {}: this build serves no clients", spec.guest);
        Ok(Self { uplink, _downlink: downlink })
    }

    /// Makes it be another.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "there is nobody to tell yet")]
    pub fn update(&self, spec: &RdmaSpec, _owner: Option<(u32, u32)>) -> Result<(), AnyError> {
        tracing::debug!("verbs device of {} is another now", spec.guest);
        Ok(())
    }

    /// Adds what it has to say of a table.
    pub fn describe(&self, name: &str, table: RdmaTable, reply: &mut RdmaReply) {
        if table != RdmaTable::Device {
            return;
        }
        let counters = vec![RdmaCounter { name: "send_err".to_owned(), value: self.uplink.refused() }];
        reply.devices.push(RdmaDevice { name: name.to_owned(), counters, ..RdmaDevice::default() });
    }
}
