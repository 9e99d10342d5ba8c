//! The sum of a flow's actions before an output: new values of fields, and of VLAN tags.

use arrayvec::ArrayVec;
use packet::{Headers, Mac, Tag, WriteError, edit, proto};
use std::net::IpAddr;

/// Most tags that a packet gets.
pub const MAX_PUSHED: usize = 2;

/// Changes to a packet's own headers. Fields change first, then tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Edits {
    /// New source MAC.
    pub mac_src: Option<Mac>,
    /// New destination MAC.
    pub mac_dst: Option<Mac>,
    /// New IP source address.
    pub ip_src: Option<IpAddr>,
    /// New IP destination address.
    pub ip_dst: Option<IpAddr>,
    /// New TTL or hop limit.
    pub ttl: Option<u8>,
    /// New DSCP.
    pub dscp: Option<u8>,
    /// New ECN field: a packet gets it when it comes out of a tunnel (RFC 6040).
    pub ecn: Option<u8>,
    /// New source port of TCP or UDP.
    pub port_src: Option<u16>,
    /// New destination port.
    pub port_dst: Option<u16>,
    /// Number of the packet's tags that are removed, from the outermost on.
    pub popped: u8,
    /// Tags that are pushed then, the innermost first.
    pub pushed: ArrayVec<Tag, MAX_PUSHED>,
}

/// Offset of the outermost tag in a frame: after the addresses.
const TAGS_AT: usize = 12;

impl Edits {
    /// Returns whether the edits change nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the edits change fields; tags do not count.
    #[must_use]
    pub const fn changes_fields(&self) -> bool {
        self.mac_src.is_some() || self.mac_dst.is_some() || self.changes_ip()
    }

    /// Returns whether the edits change IP fields or ports.
    #[must_use]
    pub const fn changes_ip(&self) -> bool {
        self.ip_src.is_some()
            || self.ip_dst.is_some()
            || self.ttl.is_some()
            || self.dscp.is_some()
            || self.ecn.is_some()
            || self.port_src.is_some()
            || self.port_dst.is_some()
    }

    /// Returns the new traffic class of a packet that had the traffic class `before`.
    #[must_use]
    pub fn tos(&self, before: u8) -> u8 {
        let dscp = self.dscp.map_or(before & !packet::ecn::ECN_MASK, |dscp| dscp << 2);
        dscp | self.ecn.unwrap_or(before & packet::ecn::ECN_MASK)
    }

    /// Sets the fields in a frame with these headers. Leaves the tags as they are. With `partial`, the L4
    /// checksum holds the pseudo-header's sum, which somebody completes later.
    ///
    /// # Errors
    /// [`WriteError`] if the edits do not fit the packet.
    pub fn set_fields(&self, frame: &mut [u8], headers: &Headers, partial: bool) -> Result<(), WriteError> {
        let mut headers = headers.clone();
        if self.mac_src.is_some() || self.mac_dst.is_some() {
            let eth = headers.eth.as_ref().ok_or(WriteError::Mismatch)?;
            let (dst, src) = (self.mac_dst.unwrap_or(eth.dst), self.mac_src.unwrap_or(eth.src));
            edit::set_macs(frame, &mut headers, dst, src)?;
        }
        if let Some(src) = self.ip_src {
            edit::set_source(frame, &mut headers, src, partial)?;
        }
        if let Some(dst) = self.ip_dst {
            edit::set_destination(frame, &mut headers, dst, partial)?;
        }
        if let Some(ttl) = self.ttl {
            edit::set_ttl(frame, &mut headers, ttl)?;
        }
        if self.dscp.is_some() || self.ecn.is_some() {
            let tos = self.tos(headers.ip().ok_or(WriteError::Mismatch)?.tos);
            edit::set_tos(frame, &mut headers, tos)?;
        }
        if let Some(port) = self.port_src {
            edit::set_source_port(frame, &mut headers, port, partial)?;
        }
        if let Some(port) = self.port_dst {
            edit::set_destination_port(frame, &mut headers, port, partial)?;
        }
        Ok(())
    }

    /// Applies all edits to a whole frame: the reference. Returns `None` if they do not fit the frame.
    pub(crate) fn apply(&self, frame: &mut Vec<u8>) -> Option<()> {
        let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
        self.set_fields(frame, &headers, false).ok()?;
        let popped = TAGS_AT + usize::from(self.popped) * proto::VLAN_LEN;
        if popped > usize::from(headers.l3_at) {
            return None;
        }
        frame.splice(TAGS_AT..popped, self.tag_bytes().flatten());
        Some(())
    }

    /// Returns each edit in words.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.mac_src.map(|mac| format!("set eth_src {mac}")));
        words.extend(self.mac_dst.map(|mac| format!("set eth_dst {mac}")));
        words.extend(self.ip_src.map(|addr| format!("set ip_src {addr}")));
        words.extend(self.ip_dst.map(|addr| format!("set ip_dst {addr}")));
        words.extend(self.ttl.map(|ttl| format!("set ip_ttl {ttl}")));
        words.extend(self.dscp.map(|dscp| format!("set dscp {dscp}")));
        words.extend(self.ecn.map(|ecn| format!("set ecn {ecn}")));
        words.extend(self.port_src.map(|port| format!("set port_src {port}")));
        words.extend(self.port_dst.map(|port| format!("set port_dst {port}")));
        words.extend((0..self.popped).map(|_| "pop vlan".to_owned()));
        words.extend(self.pushed.iter().map(|tag| {
            let kind = if tag.service { "service vlan" } else { "vlan" };
            let priority =
                if tag.tci >> 13 == 0 { String::new() } else { format!(" priority {}", tag.tci >> 13) };
            format!("push {kind} {}{priority}", tag.vlan())
        }));
        words
    }

    /// Returns by how many bytes a frame grows.
    #[must_use]
    pub fn grown(&self) -> isize {
        (self.pushed.len() as isize - isize::from(self.popped)) * proto::VLAN_LEN as isize
    }

    /// Returns the pushed tags as they lie in a frame after its addresses.
    pub fn tag_bytes(&self) -> impl Iterator<Item = [u8; proto::VLAN_LEN]> {
        self.pushed.iter().rev().map(|tag| {
            let kind = if tag.service { proto::ETHERTYPE_QINQ } else { proto::ETHERTYPE_VLAN };
            let ([a, b], [c, d]) = (kind.to_be_bytes(), tag.tci.to_be_bytes());
            [a, b, c, d]
        })
    }
}
