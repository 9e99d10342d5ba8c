//! A parsed packet as `decide` sees it.

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
    /// Its (outermost) headers.
    pub headers: Headers,
    /// Whether a NIC, this host's kernel or an earlier sum vouches for the L4 checksum after these headers.
    pub checked: bool,
}

impl<'a> PacketView<'a> {
    /// Parses the frame whose first bytes are `bytes` and whose length is `len`. Nothing vouches for its checksum.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8], len: u32, gso_size: Option<u16>) -> Result<Self, ParseError> {
        let headers = Headers::ethernet(bytes, 0, len as usize)?;
        Ok(Self { bytes, len, gso_size, headers, checked: false })
    }
}
