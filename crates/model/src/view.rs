//! A parsed packet as `decide` sees it.

use crate::{Lookup, VifId, VifKind};
use packet::{Headers, ParseError};

/// The head of a packet, parsed.
#[derive(Clone, Debug)]
pub struct PacketView<'a> {
    /// The frame's first bytes, at least all of its headers.
    pub bytes: &'a [u8],
    /// Length of the whole frame, bytes, without FCS.
    pub len: u32,
    /// TCP payload bytes per segment, if the frame is a large send that is yet to be segmented. One segment then
    /// counts against an MTU.
    pub gso_size: Option<u16>,
    /// The frame's (outermost) headers.
    pub headers: Headers,
    /// Whether a NIC, this host's kernel or an earlier check vouches for the L4 checksum after these headers.
    pub checked: bool,
}

impl<'a> PacketView<'a> {
    /// Parses the frame whose first bytes are `bytes` and whose length is `len`. Nothing vouches for its
    /// checksum.
    ///
    /// # Errors
    /// The first malformation found.
    pub fn parse(bytes: &'a [u8], len: u32, gso_size: Option<u16>) -> Result<Self, ParseError> {
        let headers = Headers::ethernet(bytes, 0, len as usize)?;
        Ok(Self { bytes, len, gso_size, headers, checked: false })
    }

    /// Parses a frame like [`Self::parse`], as it arrives on an interface. A frame that Open vSwitch sends by
    /// a port may be malformed: OVS may have cut the end off (a mirror's `snaplen`, `max_len` of an output),
    /// or set a source address that no host may use. If nothing but OVS decides about the frame, only its
    /// Ethernet header and tags count.
    ///
    /// # Errors
    /// The first malformation found.
    pub fn arrived<T: Lookup>(
        tables: &T,
        ingress: VifId,
        bytes: &'a [u8],
        len: u32,
        gso_size: Option<u16>,
    ) -> Result<Self, ParseError> {
        match Self::parse(bytes, len, gso_size) {
            Err(error) if error != ParseError::HeaderTooLong && leaves_as_it_is(tables, ingress) => {
                let headers = Headers::ethernet_alone(bytes, len as usize)?;
                Ok(Self { bytes, len, gso_size, headers, checked: false })
            }
            parsed => parsed,
        }
    }
}

/// Returns whether an interface is the OVS side of a port that has neither rules nor a tunnel. Those look at
/// packets.
#[cold]
fn leaves_as_it_is<T: Lookup>(tables: &T, ingress: VifId) -> bool {
    let side = tables.vif(ingress).filter(|vif| vif.kind == VifKind::Ovs);
    let port = side.and_then(|side| tables.vif(side.ovs?));
    port.is_some_and(|port| port.rules.is_none() && port.tunnel().is_none())
}
