//! Keys of the tables.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// An interface: a guest's or a wire. Ids are small and dense; the control plane assigns them.
    VifId, u16
);
id!(
    /// A network's routing and forwarding instance, as configured (`vrf`).
    Vrf, u16
);
id!(
    /// A nexthop; equal nexthops share one.
    NexthopId, u32
);
id!(
    /// A rule, unique within the host.
    RuleId, u32
);
id!(
    /// A token bucket, dense.
    MeterId, u32
);
