//! Numbers of the protocol, as in `ovs-pmd/protocol.h`.

/// Items of a pattern, whose parts are DPDK's structures of the same names. Kind 0 is any other item, with
/// its name as spec.
pub mod item {
    pub const ETH: u16 = 1;
    pub const VLAN: u16 = 2;
    pub const IPV4: u16 = 3;
    pub const IPV6: u16 = 4;
    pub const IPV6_FRAG: u16 = 5;
    pub const TCP: u16 = 6;
    pub const UDP: u16 = 7;
    pub const SCTP: u16 = 8;
    pub const ICMP: u16 = 9;
    pub const ICMP6: u16 = 10;
}

/// Flags for the parts that an item has.
pub mod part {
    pub const SPEC: u16 = 1;
    pub const MASK: u16 = 2;
    pub const LAST: u16 = 4;
}

pub mod action {
    /// Any other action, with its name as value.
    pub const OTHER: u16 = 0;
    pub const COUNT: u16 = 1;
    pub const DROP: u16 = 2;
    /// The value is the number of a port; [`super::FOREIGN`] is a port of a different driver.
    pub const OUTPUT: u16 = 3;
    pub const MAC_SRC: u16 = 4;
    pub const MAC_DST: u16 = 5;
    pub const IPV4_SRC: u16 = 6;
    pub const IPV4_DST: u16 = 7;
    pub const IPV6_SRC: u16 = 8;
    pub const IPV6_DST: u16 = 9;
    pub const TTL: u16 = 10;
    pub const TP_SRC: u16 = 11;
    pub const TP_DST: u16 = 12;
    /// The value is the EtherType of the tag.
    pub const PUSH_VLAN: u16 = 13;
    pub const VLAN_VID: u16 = 14;
    pub const VLAN_PCP: u16 = 15;
    pub const POP_VLAN: u16 = 16;
    pub const DSCP: u16 = 17;
    /// The value is the headers to put in front.
    pub const ENCAP: u16 = 18;
    /// OVS wants to recognise the flow's packets by a mark, which the driver keeps.
    pub const MARK: u16 = 19;
    /// OVS asks that the queues share the flow's packets, but each port has a single queue.
    pub const RSS: u16 = 20;
}

/// Things that OVS does to packets which it forwards itself.
pub mod qos {
    /// It polices what comes from the port (`ingress_policing_rate`).
    pub const IN: u32 = 1;
    /// It has a quality of service for what leaves by the port (`qos`).
    pub const OUT: u32 = 2;
    /// The driver can't read its database, so nobody knows.
    pub const UNKNOWN: u32 = 4;

    /// Returns the names of these, for people.
    pub fn names(qos: u32) -> Vec<&'static str> {
        let all = [(IN, "policing"), (OUT, "qos"), (UNKNOWN, "unknown")];
        all.into_iter().filter(|(bit, _)| qos & bit != 0).map(|(_, name)| name).collect()
    }
}

/// In place of a port's number: a port of a different driver.
pub const FOREIGN: u32 = u32::MAX;

/// Attribute of a flow that may send to other ports of the switch (`transfer`).
pub const TRANSFER: u32 = 4;
/// Attribute of a flow that OVS carries out itself.
pub const INGRESS: u32 = 1;
