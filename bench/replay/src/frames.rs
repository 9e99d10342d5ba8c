//! The packets, which equal those of the DPDK generator's streams.

use anyhow::Result;
use packet::{Mac, build, proto};
use std::net::Ipv4Addr;

pub const SENDER: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const RECEIVER: Mac = Mac([2, 0, 0, 0, 0, 2]);

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 1);
const DESTINATION_PORT: u16 = 5001;
const FIRST_PORT: u16 = 1024;
const SOURCE_PORTS: u32 = 16384;
const RARP: u16 = 0x8035;

/// Writes the UDP frame of a flow that fills `frame`.
pub fn udp(frame: &mut [u8], flow: u32) -> Result<()> {
    let length = frame.len() as u16;
    let mut at = build::ethernet(frame, RECEIVER, SENDER, proto::ETHERTYPE_IPV4)?;
    let ip = build::Ipv4 {
        src: (u32::from(SOURCE) + flow / SOURCE_PORTS).into(),
        dst: DESTINATION,
        protocol: proto::UDP,
        ttl: 64,
        tos: 0,
        id: 0,
        dont_fragment: false,
        len: length - 14,
    };
    at += build::ipv4(&mut frame[at..], &ip)?;
    let port = FIRST_PORT + (flow % SOURCE_PORTS) as u16;
    build::udp(&mut frame[at..], port, DESTINATION_PORT, length - 34, 0)?;
    Ok(())
}

/// Writes the reverse ARP request by which a guest makes its address known.
pub fn announcement(frame: &mut [u8]) -> Result<()> {
    frame.fill(0);
    build::ethernet(frame, Mac([0xff; 6]), RECEIVER, RARP)?;
    Ok(())
}
