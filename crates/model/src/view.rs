//! A parsed packet as `decide` sees it.

use packet::{Headers, ParseError};

/// The head of a packet, parsed.
#[derive(Clone, Debug)]
pub struct PacketView<'a> {
    /// The frame's first bytes, at least all of its headers.
    pub bytes: &'a [u8],
    /// Length of the whole frame, bytes, without FCS.
    pub len: u32,
    /// TCP payload bytes per segment, where the frame is a large send still to be segmented: what counts against
    /// an MTU is then one segment.
    pub gso_size: Option<u16>,
    /// Its (outermost) headers.
    pub headers: Headers,
    /// Somebody vouches for the L4 checksum behind these headers: a NIC, this host's kernel, or who summed it before.
    pub checked: bool,
}

impl<'a> PacketView<'a> {
    /// Parses the frame whose first bytes are `bytes` and whose length is `len`. Nobody vouches for its checksum.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8], len: u32, gso_size: Option<u16>) -> Result<Self, ParseError> {
        let headers = Headers::ethernet(bytes, 0, len as usize)?;
        Ok(Self { bytes, len, gso_size, headers, checked: false })
    }
}
