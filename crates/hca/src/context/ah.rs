//! Address handles.

use crate::base::budget::{Kind, Reservation};
use crate::base::ids::PdId;
use crate::base::refusal::refuse;
use crate::context::quota::Quota;
use crate::net::adapter::Adapter;
use crate::net::fabric::Fabric;
use crate::net::path::Path;
use rustix::io::Errno;
use uverbs::{AddressVector, Refusal};

#[derive(Debug)]
pub(crate) struct Ah {
    pub pd: PdId,
    pub vector: AddressVector,
    pub path: Path,
    /// The handle's share of the device's limits.
    _reservation: Reservation,
}

impl Ah {
    /// Creates a handle for this address, if there is a path to it.
    pub fn create(
        pd: PdId,
        vector: &AddressVector,
        adapter: &Adapter,
        fabric: &Fabric,
        quota: &Quota,
    ) -> Result<Self, Refusal> {
        let held = quota.take(Kind::AddressHandle, 0, quota.limits.ahs())?;
        let path = Path::find(vector, adapter, fabric).or_else(|e| refuse(Errno::INVAL, e.to_string()))?;
        Ok(Self { pd, vector: *vector, path, _reservation: held })
    }
}
