//! Numbers of an application's objects, each with its own type, and maps by them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Objects by their numbers, which the device chooses: so no application can choose them to collide, and a hash that
/// takes no time suffices.
pub(crate) type ById<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits of a hash (Knuth's multiplicative hashing).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub u32);
    };
}

id!(PdId);
id!(CqId);
id!(SrqId);
id!(
    /// The number of a queue pair: 24 bits, unique within a device.
    Qpn
);
id!(
    /// The key of a memory region or window: `lkey` and `rkey` alike.
    Key
);
id!(
    /// A memory window: the part of its key that stays the same while its application binds it with other keys.
    MwId
);

impl Key {
    /// Returns the key without its lowest byte, which the application chooses for windows.
    pub const fn index(self) -> MwId {
        MwId(self.0 >> 8)
    }
}
