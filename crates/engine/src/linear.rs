//! Buffers for packets that are needed whole or more than once: flooded, mirrored, held, answered, captured.

use crate::frame::Frame;
use crate::rewrite::HEADROOM;
use mem::Segment;

/// Longest frame: an IP packet of 65535 bytes with its Ethernet header and tags, or in a tunnel.
pub(crate) const MAX_FRAME: usize = 66_000;

/// Bytes of a linear packet that are rewritten for each destination. All its headers must be in them.
pub(crate) const MAX_HEAD: usize = 1024;

#[derive(Debug)]
pub(crate) struct Linear {
    /// The packet as it came in. Taken out during the work on it.
    pub original: Vec<u8>,
    /// A copy of its head, with room before it. Taken out during the work on it.
    pub head: Vec<u8>,
    pub reply: Vec<u8>,
    shown: Vec<u8>,
}

impl Linear {
    /// Allocates all the memory it will ever need.
    pub fn new() -> Self {
        Self {
            original: Vec::with_capacity(MAX_FRAME),
            head: Vec::with_capacity(HEADROOM + MAX_HEAD),
            reply: Vec::with_capacity(MAX_FRAME),
            shown: Vec::with_capacity(MAX_FRAME),
        }
    }

    /// Takes out the original and loads it with a packet: `head` as it was copied before, the rest from `segments`.
    pub fn take(&mut self, segments: &[Segment], head: &[u8], len: usize) -> Vec<u8> {
        let mut original = std::mem::take(&mut self.original);
        fill(&mut original, segments, head, len);
        original
    }

    /// Loads the first `len` bytes of a packet, for captures, and returns them.
    pub fn load(&mut self, segments: &[Segment], head: &[u8], len: usize) -> &[u8] {
        fill(&mut self.shown, segments, head, len);
        &self.shown
    }

    /// Returns how many bytes of the last packet were shown to captures.
    #[cfg(test)]
    pub fn shown_len(&self) -> usize {
        self.shown.len()
    }

    /// Copies the first bytes, at most `most`, of a frame for delivery, for captures, and returns them.
    pub fn gather(&mut self, frame: &Frame<'_>, most: usize) -> &[u8] {
        self.shown.resize(frame.len().min(most).min(MAX_FRAME), 0);
        let len = frame.gather(&mut self.shown);
        &self.shown[..len]
    }
}

fn fill(out: &mut Vec<u8>, segments: &[Segment], head: &[u8], len: usize) {
    let len = len.min(MAX_FRAME);
    let head = &head[..head.len().min(len)];
    out.clear();
    out.extend_from_slice(head);
    out.resize(len, 0);
    let got = mem::gather(segments, head.len(), &mut out[head.len()..]);
    out.truncate(head.len() + got);
}
