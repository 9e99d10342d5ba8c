//! The message by which daemons agree on the queue pairs of a line. It is a datagram between queue pairs that no program
//! can have, so that it comes from a daemon, or from whoever has all of the other machine.

use crate::base::limits::PARTITION;
use crate::net::adapter::SERVICE_QPN;
use packet::roce::{self, Bth, Datagram, Deth, Opcode, Operation, Service};

const MAGIC: u32 = 0x5644_4c31;
/// Bytes of a message.
const LEN: usize = 48;
/// Privileged, as only the daemon's datagrams have it (IBTA 10.2.5).
const QUEUE_KEY: u32 = 0x8076_6431;

/// One end's offer of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// Identifies what the daemon knows of connections: another number, and it knows none of the earlier ones.
    pub boot: u64,
    /// Identifies this offer.
    pub nonce: u64,
    /// The other end's offer that it answers; 0: none.
    pub echo: u64,
    pub qpn: u32,
    pub psn: u32,
    /// The code of the longest payload that its packets may have.
    pub mtu: u8,
    /// Whether its queue pair is connected: then it needs no answer.
    pub is_up: bool,
}

impl Hello {
    /// Returns the UDP payload, with room for its ICRC.
    pub fn datagram(&self) -> Option<Vec<u8>> {
        let mut payload = [0; LEN];
        payload[..4].copy_from_slice(&MAGIC.to_be_bytes());
        for (at, word) in [(8, self.boot), (16, self.nonce), (24, self.echo)] {
            payload[at..at + 8].copy_from_slice(&word.to_be_bytes());
        }
        payload[32..36].copy_from_slice(&self.qpn.to_be_bytes());
        payload[36..40].copy_from_slice(&self.psn.to_be_bytes());
        payload[40..42].copy_from_slice(&[self.mtu, self.is_up.into()]);
        let bth = Bth {
            opcode: Opcode::Of(Service::Ud, Operation::SendOnly),
            solicited: false,
            migrated: true,
            partition: PARTITION,
            forward_congestion: false,
            backward_congestion: false,
            destination: SERVICE_QPN.0,
            acknowledge: false,
            psn: 0,
        };
        let deth = Some(Deth { queue_key: QUEUE_KEY, source: SERVICE_QPN.0 });
        let mut bytes = vec![0; LEN + 64];
        let len = roce::write(&Datagram { deth, ..Datagram::new(bth, &payload) }, &mut bytes).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// Reads a packet for the daemon's queue pair. `None`: it is no such message, or comes from a program.
    pub fn read(packet: &Datagram<'_>) -> Option<Self> {
        let payload: &[u8; LEN] = packet.payload.try_into().ok()?;
        let is_daemons = packet.deth == Some(Deth { queue_key: QUEUE_KEY, source: SERVICE_QPN.0 });
        if !is_daemons || payload[..4] != MAGIC.to_be_bytes() || payload[41] > 1 {
            return None;
        }
        let word = |at: usize| payload[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let half = |at: usize| (word(at) >> 32) as u32;
        Some(Self {
            boot: word(8),
            nonce: word(16),
            echo: word(24),
            qpn: half(32) & 0xff_ffff,
            psn: half(36) & 0xff_ffff,
            mtu: payload[40],
            is_up: payload[41] == 1,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_unless_a_program_says_it() {
        let hello = Hello { boot: 1, nonce: 2, echo: 3, qpn: 0x12_3456, psn: 0x65_4321, mtu: 5, is_up: true };
        let mut bytes = hello.datagram().unwrap();
        let heard = |bytes: &[u8]| roce::parse(bytes).ok().and_then(|packet| Hello::read(&packet));
        assert_eq!(heard(&bytes), Some(hello));
        // The source queue pair is the last field before the payload.
        bytes[12 + 7] = 17;
        assert_eq!(heard(&bytes), None);
    }

    #[test]
    fn any_offers_of_lines() {
        bolero::check!().with_type::<(Vec<u8>, u32, u32)>().for_each(|(payload, queue_key, source)| {
            let hello = Hello::default().datagram().unwrap();
            let mut packet = roce::parse(&hello).unwrap();
            packet.payload = payload;
            packet.deth = Some(Deth { queue_key: *queue_key, source: *source });
            _ = Hello::read(&packet);
        });
    }
}
