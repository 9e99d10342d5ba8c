use model::ovs::BadOuter;

/// Defines the reasons, each with its name in listings and a text for its counters.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $(($($field:ident: $type:ty),+))? = $label:literal, $text:literal;)*) => {
        /// The reason why a flow is refused, so that OVS carries it out itself.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Refused {
            $($(#[$doc])* #[error($text)] $name $(($($type),+))?,)*
        }

        impl Refused {
            pub const NAMES: &[&str] = &[$($label),*];

            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(reasons!(@pattern $name $(($($type),+))?) => $label,)*
                }
            }
        }
    };
    (@pattern $name:ident) => { Self::$name };
    (@pattern $name:ident ($($type:ty),+)) => { Self::$name(..) };
}

reasons! {
    NoPort = "no_port", "the port is not open";
    /// Neither a `transfer` flow nor a mark.
    NotTransfer = "not_transfer",
        "a flow is carried out as a whole (transfer), or its packets get a mark, and nothing else";
    /// A group or a priority other than 0.
    Group = "group", "only group 0 and priority 0 are known";
    Item(name: String) = "item", "the match on {0} is not known";
    /// A field that can't be matched on.
    Field(name: &'static str) = "field", "{0} can't be matched on";
    Range(name: &'static str) = "range", "a range of {0} can't be matched on";
    /// An item with a value and no mask, or a mask and no value.
    NoMask = "no_mask", "an item has a value without a mask, or a mask without a value";
    /// An item that comes twice, or in an order that no packet has.
    Order = "order", "the items are in an order that is not known";
    Action(name: String) = "action", "the action {0} is not known";
    Value(name: &'static str) = "value", "the action {0} has a value that it can't have";
    /// An output to a port of a different driver, or to a port that is not open.
    ForeignPort = "foreign_port", "an output goes to a port that is not one of Viaduct's";
    /// Headers of a tunnel that can't be put in front of packets.
    Tunnel(reason: BadOuter) = "tunnel", "the tunnel's headers can't be put in front: {0}";
    Exists = "exists", "the port has a flow with this match";
    /// No room for more flows, or for more of their parts.
    Full(what: &'static str) = "full", "there are as many {0} as there can be";
    Executor(reason: String) = "executor", "{0}";
    /// A part of an item whose length differs from that of its kind.
    Length(kind: u16) = "length", "a value or mask of an item of kind {0} has a wrong length";
    /// OVS polices what comes from the port, or has a quality of service for a port that the flow sends to.
    Qos = "qos", "Open vSwitch polices the port, or has a QoS for a port that the flow sends to";
}

impl Refused {
    /// Returns the reason's number in answers: its place in [`Self::NAMES`], from 1 on.
    #[must_use]
    pub fn number(&self) -> u32 {
        let at = Self::NAMES.iter().position(|name| *name == self.name());
        at.map_or(0, |at| at as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Refused;

    #[test]
    fn the_documentation_has_a_row_for_each_reason() {
        let page = include_str!("../../../docs/ovs.md");
        let (_, table) = page.split_once("\n| reason | the flow |\n|---|---|\n").unwrap_or_default();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let named: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(named, Refused::NAMES);
    }
}
