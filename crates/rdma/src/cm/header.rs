//! The header at the start of a request's private data: the addresses of both ends (IBTA A11.3.3).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const LEN: usize = 36;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    pub source_port: u16,
    pub source: IpAddr,
    pub destination: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a header of version 0 with two IP addresses")]
pub struct MalformedHeader;

impl IpHeader {
    /// Reads the header at the start of private data.
    ///
    /// # Errors
    /// If there is none, or it has another version or no version of IP.
    pub fn parse(private: &[u8]) -> Result<Self, MalformedHeader> {
        let header: &[u8; LEN] = private.first_chunk().ok_or(MalformedHeader)?;
        let [0, versions, p0, p1, addresses @ ..] = header else { return Err(MalformedHeader) };
        let (source, destination) = addresses.split_at(16);
        Ok(Self {
            source_port: u16::from_be_bytes([*p0, *p1]),
            source: address(versions >> 4, source)?,
            destination: address(versions >> 4, destination)?,
        })
    }

    /// Is true if a request between these addresses may have this header: it has the same addresses or, from a guest to
    /// itself, loopback addresses instead.
    #[must_use]
    pub fn fits(&self, from: IpAddr, to: IpAddr) -> bool {
        let fits = |said: IpAddr, is: IpAddr| said == is || from == to && said.is_loopback();
        fits(self.source, from) && fits(self.destination, to)
    }

    /// Returns the address to which a request between these addresses is directed.
    pub(super) fn asked(private: &[u8], from: IpAddr, to: IpAddr) -> IpAddr {
        Self::parse(private)
            .ok()
            .filter(|header| header.fits(from, to))
            .map_or(to, |header| header.destination)
    }

    /// Returns the header's bytes. Both addresses must have the same version of IP.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }
}

fn address(version: u8, bytes: &[u8]) -> Result<IpAddr, MalformedHeader> {
    let octets: [u8; 16] = bytes.try_into().map_err(|_| MalformedHeader)?;
    match (version, octets) {
        (4, [.., a, b, c, d]) => Ok(Ipv4Addr::new(a, b, c, d).into()),
        (6, octets) => Ok(Ipv6Addr::from(octets).into()),
        _ => Err(MalformedHeader),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let header = IpHeader {
                source_port: 7,
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            };
            let bytes = header.to_bytes();
            assert_eq!(IpHeader::parse(&bytes), Ok(header));
            assert_eq!(IpHeader::parse(&bytes[..LEN - 1]), Err(MalformedHeader));
            for (at, value) in [(0, 1), (1, 0x50), (1, 0)] {
                let mut wrong = bytes;
                wrong[at] = value;
                assert_eq!(IpHeader::parse(&wrong), Err(MalformedHeader));
            }
        }
    }
}
