//! Tunnel headers in front of a packet.

use super::{Edits, MAX_OUTER, Outer};
use crate::rewrite::write_encap;
use crate::{Encap, PacketView, VifId};
use packet::{WriteError, checksum, entropy_port, proto};
use std::net::IpAddr;

/// A port to which a flow sends a packet, and how the packet is changed on its way there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Interface by which the packet leaves.
    pub port: VifId,
    /// Bytes removed from the front of the frame that came in: the tunnel's headers, if the packet came by
    /// the port of a tunnel. The link's padding behind the packet inside is removed with them.
    pub strip: u16,
    /// Changes to fields and tags.
    pub edits: Edits,
    /// Tunnel headers that are then put in front.
    pub wrap: Option<Wrap>,
}

impl Output {
    /// Returns whether the packet leaves as it came.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.strip == 0 && self.wrap.is_none() && self.edits.is_nothing()
    }

    /// Returns whether the packet that leaves belongs to a different connection than the one that came.
    pub(crate) const fn readdresses(&self) -> bool {
        let Edits { ip_src, ip_dst, port_src, port_dst, .. } = &self.edits;
        let addresses = ip_src.is_some() || ip_dst.is_some();
        self.wrap.is_some() || addresses || port_src.is_some() || port_dst.is_some()
    }

    /// Returns the flow entropy for the tunnel that the packet goes through; 0 without a tunnel.
    #[must_use]
    pub fn entropy(&self) -> u32 {
        self.wrap.as_ref().map_or(0, |wrap| wrap.entropy)
    }

    /// Returns the frame that leaves: the reference. `None` if the changes do not fit this packet.
    pub(crate) fn rewrite(&self, packet: &PacketView<'_>) -> Option<Vec<u8>> {
        let end = match self.strip {
            0 => packet.len as usize,
            _ => packet::tunnel(packet.bytes, &packet.headers, packet.len as usize).ok()??.inner_end,
        };
        let mut frame = packet.bytes.get(usize::from(self.strip)..end)?.to_vec();
        self.edits.apply(&mut frame)?;
        match &self.wrap {
            Some(wrap) => wrap.put_before(&frame),
            None => Some(frame),
        }
    }

    /// Returns by how many bytes a frame grows.
    pub fn grown(&self) -> isize {
        let wrapped = self.wrap.as_ref().map_or(0, |wrap| wrap.outer.bytes().len());
        self.edits.grown() + wrapped as isize - self.strip as isize
    }
}

/// A tunnel through which a packet goes: [`super::Action::Encap`], and the entropy of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrap {
    /// The headers.
    pub outer: Outer,
    /// Flow entropy of the packet inside (like [`crate::Encap::entropy`]).
    pub entropy: u32,
}

impl Wrap {
    /// Returns the same tunnel as this encapsulation. `None` if its addresses are of two families.
    pub(crate) fn of(encap: &Encap) -> Option<Self> {
        let mut headers = [0; MAX_OUTER];
        let len = write_encap(&mut headers, encap, 0).ok()?;
        Some(Self { outer: Outer::new(&headers[..len]).ok()?, entropy: encap.entropy })
    }
}

impl Wrap {
    /// Puts the completed headers before a whole frame: the reference. Returns `None` if the result is too
    /// long.
    pub(crate) fn put_before(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut whole = [self.outer.bytes(), frame].concat();
        self.complete(&mut whole).ok()?;
        Some(whole)
    }

    fn complete(&self, whole: &mut [u8]) -> Result<(), WriteError> {
        let l4 = self.outer.l4();
        let (ip, datagram) = whole[proto::ETHERNET_LEN..]
            .split_at_mut_checked(l4 - proto::ETHERNET_LEN)
            .ok_or(WriteError::TooShort)?;
        let len = u16::try_from(datagram.len()).map_err(|_| WriteError::TooShort)?;
        if self.outer.is_udp() {
            datagram[..2].copy_from_slice(&entropy_port(self.entropy).to_be_bytes());
            datagram[4..6].copy_from_slice(&len.to_be_bytes());
        }
        if self.outer.is_v6() {
            ip[4..6].copy_from_slice(&len.to_be_bytes());
            let label = self.entropy & 0xf_ffff;
            ip[1] |= (label >> 16) as u8;
            ip[2..4].copy_from_slice(&(label as u16).to_be_bytes());
        } else {
            let total = u16::try_from(ip.len() + datagram.len()).map_err(|_| WriteError::TooShort)?;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum::sum(ip).finish();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        if self.outer.has_sum() {
            let [src, dst] = addresses(ip).ok_or(WriteError::TooShort)?;
            let sum = checksum::l4(src, dst, proto::UDP, datagram);
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(())
    }
}

/// Returns source and destination of an IP header without options.
fn addresses(ip: &[u8]) -> Option<[IpAddr; 2]> {
    if ip.len() == proto::IPV4_LEN {
        let (pair, _) = ip[12..].as_chunks::<4>();
        let &[src, dst] = pair else { return None };
        Some([src.into(), dst.into()])
    } else {
        let (pair, _) = ip.get(8..)?.as_chunks::<16>();
        let &[src, dst] = pair else { return None };
        Some([src.into(), dst.into()])
    }
}
