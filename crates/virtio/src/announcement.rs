//! The frame that announces a guest that arrived by migration, if its driver cannot do that (vhost-user,
//! SEND_RARP): switches learn from it where the guest's MAC is now.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shortest Ethernet frame, without its checksum.
const LEN: usize = 60;

pub(crate) type Frame = [u8; LEN];

/// A frame that the control thread wants to be sent, and a worker sends.
#[derive(Debug, Default)]
pub(crate) struct Announcement(AtomicU64);

/// Set if there is a frame to send: MACs have 48 bits.
const WANTED: u64 = 1 << 63;

impl Announcement {
    /// Asks for a frame that announces `mac`.
    pub(crate) fn ask(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.0.store(WANTED | u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Release);
    }

    /// Takes the frame, if one was asked for: it is sent once.
    #[inline]
    pub(crate) fn take(&self) -> Option<Frame> {
        (self.0.load(Ordering::Relaxed) != 0).then(|| self.made()).flatten()
    }

    #[cold]
    fn made(&self) -> Option<Frame> {
        let asked = self.0.swap(0, Ordering::Acquire);
        let [_, _, mac @ ..] = asked.to_be_bytes();
        (asked != 0).then(|| rarp(mac))
    }
}

/// Builds a request of reverse ARP (RFC 903) for the guest's own MAC, to everybody.
fn rarp(mac: [u8; 6]) -> Frame {
    let mut frame = [0; LEN];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // RARP; Ethernet and IPv4, with lengths of their addresses; request reverse.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_sent_once() {
        let announcement = Announcement::default();
        assert_eq!(announcement.take(), None);
        for mac in [[2, 0, 0, 0, 0, 1], [0; 6]] {
            announcement.ask(mac);
            let frame = announcement.take().unwrap();
            assert_eq!(
                (&frame[..6], &frame[6..12], &frame[12..14]),
                (&[0xff; 6][..], &mac[..], &[0x80, 0x35][..])
            );
            assert_eq!((&frame[20..22], &frame[22..28], &frame[32..38]), (&[0, 3][..], &mac[..], &mac[..]));
            assert_eq!(announcement.take(), None);
        }
    }
}
