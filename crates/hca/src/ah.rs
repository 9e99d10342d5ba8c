//! Address handles.

use crate::adapter::Adapter;
use crate::budget::{Kind, Reservation};
use crate::fabric::Fabric;
use crate::ids::PdId;
use crate::path::Path;
use crate::quota::Quota;
use crate::refusal::refuse;
use rustix::io::Errno;
use uverbs::{AddressVector, Refusal};

/// An address handle.
#[derive(Debug)]
pub(crate) struct Ah {
    pub pd: PdId,
    pub vector: AddressVector,
    pub path: Path,
    /// Its share of the device's limits.
    _reservation: Reservation,
}

impl Ah {
    /// A handle for this address, if there is a path to it.
    pub fn create(
        pd: PdId,
        vector: &AddressVector,
        (adapter, fabric): (&Adapter, &Fabric),
        quota: &Quota,
    ) -> Result<Self, Refusal> {
        let held = quota.take(Kind::AddressHandle, 0, quota.limits.ahs())?;
        let path = Path::find(vector, adapter, fabric).or_else(|e| refuse(Errno::INVAL, e.to_string()))?;
        Ok(Self { pd, vector: *vector, path, _reservation: held })
    }
}
