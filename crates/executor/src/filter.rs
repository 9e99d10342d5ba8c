//! Filters of captures and of lists of connections: properties joined by and, or, not.

use ipnet::IpNet;
use model::FlowState;
use packet::Mac;
use std::ops::RangeInclusive;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// All of these hold; an empty list always does.
    All(Vec<Self>),
    /// At least one of these holds.
    Either(Vec<Self>),
    /// This does not hold.
    Not(Box<Self>),
    /// A property.
    Is(Property),
}

impl Default for Filter {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

impl Filter {
    /// Returns whether the expression holds. `is` says which properties hold.
    pub fn holds(&self, is: &dyn Fn(&Property) -> bool) -> bool {
        match self {
            Self::All(all) => all.iter().all(|filter| filter.holds(is)),
            Self::Either(some) => some.iter().any(|filter| filter.holds(is)),
            Self::Not(filter) => !filter.holds(is),
            Self::Is(property) => is(property),
        }
    }

    /// Returns the first property in the expression for which `these` returns true.
    pub fn find(&self, these: &dyn Fn(&Property) -> bool) -> Option<&Property> {
        match self {
            Self::All(filters) | Self::Either(filters) => {
                filters.iter().find_map(|filter| filter.find(these))
            }
            Self::Not(filter) => filter.find(these),
            Self::Is(property) => these(property).then_some(property),
        }
    }

    /// Returns whether the expression holds for everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(all) if all.is_empty())
    }
}

/// A property of packets or connections.
#[derive(Clone, Debug, PartialEq)]
pub enum Property {
    /// An address of this prefix.
    Net(Side, IpNet),
    /// A port of this range.
    Ports(Side, RangeInclusive<u16>),
    /// This IP protocol.
    Protocol(u8),
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// This MAC.
    Mac(Side, Mac),
    /// The packet was dropped.
    Dropped,
    /// The packet came in by the interface where it was captured.
    Inbound,
    /// The packet left by the interface where it was captured.
    Outbound,
    /// The connection is in this state.
    State(FlowState),
    /// The connection has an end in this network.
    Network(String),
}

/// The side of a packet or connection that has a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
    /// At least one of both.
    Any,
}

impl Side {
    /// Returns whether `has` is true for this side.
    pub fn has<T>(self, src: T, dst: T, has: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => has(src),
            Self::Destination => has(dst),
            Self::Any => has(src) || has(dst),
        }
    }
}
