//! Numbers of an application's objects, each with its own type.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub u32);
    };
}

id!(
    /// A protection domain of an application.
    PdId
);
id!(
    /// A completion queue of an application.
    CqId
);
id!(
    /// A shared receive queue of an application.
    SrqId
);
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
    /// The key without its lowest byte, which the application chooses for windows.
    pub const fn index(self) -> MwId {
        MwId(self.0 >> 8)
    }
}
