//! Writes pcapng (draft-ietf-opsawg-pcapng): a section, interfaces with names, packets with direction and
//! comment.
//!
//! Written by hand: `pcapng-writer` has one release, of 2021, and the newest `pcap-file` is a release
//! candidate, which reads and writes all of the format. Three kinds of blocks are all that a capture needs.

use std::collections::HashMap;
use std::io::{Result, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

const LINKTYPE_ETHERNET: u16 = 1;

pub struct Packet<'a> {
    pub interface: &'a str,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Whether it left by the interface; otherwise it came in.
    pub outbound: bool,
    pub comment: Option<&'a str>,
    /// Length of the whole packet, bytes.
    pub length: u32,
    /// First bytes of the packet.
    pub data: &'a [u8],
}

pub struct Writer<W> {
    out: W,
    interfaces: HashMap<String, u32>,
}

impl<W: Write> Writer<W> {
    /// Starts a file with a section.
    pub fn new(mut out: W) -> Result<Self> {
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_le_bytes()); // byte order
        body.extend(1_u16.to_le_bytes()); // version 1.0
        body.extend(0_u16.to_le_bytes());
        body.extend((-1_i64).to_le_bytes()); // section length unknown
        option(&mut body, SHB_USERAPPL, b"viaduct");
        end_options(&mut body);
        out.write_all(&block(SECTION, &body))?;
        Ok(Self { out, interfaces: HashMap::new() })
    }

    /// Writes a packet, and before it its interface if that is new.
    pub fn write(&mut self, packet: &Packet<'_>) -> Result<()> {
        let interface = self.interface(packet.interface)?;
        let mut body = Vec::new();
        body.extend(interface.to_le_bytes());
        body.extend(((packet.time_ns >> 32) as u32).to_le_bytes());
        body.extend((packet.time_ns as u32).to_le_bytes());
        body.extend((packet.data.len() as u32).to_le_bytes());
        body.extend(packet.length.to_le_bytes());
        padded(&mut body, packet.data);
        let direction: u32 = if packet.outbound { 2 } else { 1 };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        if let Some(comment) = packet.comment {
            option(&mut body, OPT_COMMENT, comment.as_bytes());
        }
        end_options(&mut body);
        self.out.write_all(&block(PACKET, &body))
    }

    pub fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }

    fn interface(&mut self, name: &str) -> Result<u32> {
        if let Some(index) = self.interfaces.get(name) {
            return Ok(*index);
        }
        let mut body = Vec::new();
        body.extend(LINKTYPE_ETHERNET.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        body.extend(0_u32.to_le_bytes()); // no snap length
        option(&mut body, IF_NAME, name.as_bytes());
        option(&mut body, IF_TSRESOL, &[9]); // nanoseconds
        end_options(&mut body);
        self.out.write_all(&block(INTERFACE, &body))?;
        let index = self.interfaces.len() as u32;
        self.interfaces.insert(name.to_owned(), index);
        Ok(index)
    }
}

fn padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn end_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes(), &length, body, &length].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (interface, data) in [("vm1", &[1, 2, 3][..]), ("up0", &[4; 64]), ("vm1", &[5; 17])] {
            let packet = Packet {
                interface,
                time_ns: 1_700_000_000_123_456_789,
                outbound: interface == "up0",
                comment: (interface == "vm1").then_some("rule_drop"),
                length: data.len() as u32,
                data,
            };
            writer.write(&packet).unwrap();
        }
        let frames = crate::pcap::frames(&writer.out).unwrap();
        assert_eq!((frames.inbound, frames.outbound), (vec![vec![1, 2, 3], vec![5; 17]], 1));
        let text = String::from_utf8_lossy(&writer.out).into_owned();
        assert_eq!(text.matches("vm1").count(), 1, "an interface is described once");
        assert!(text.contains("rule_drop"));
    }
}
