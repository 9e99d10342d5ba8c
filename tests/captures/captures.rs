//! Reads the captures beside it, for the tests of several crates.

use packet::{Headers, L4, proto};
use std::path::Path;

/// Reads the frames of a capture (pcap, little-endian, Ethernet, whole packets).
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "{}", file.display());
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let len = word(at + 8);
        assert_eq!(len, word(at + 12), "cut off in the capture");
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// Reads all captures of RoCEv2, by name.
pub fn roce() -> Vec<(String, Vec<Vec<u8>>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures/roce");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let captures = files.filter(|file| file.extension().is_some_and(|extension| extension == "pcap"));
    captures.map(|file| (file.file_stem().unwrap().to_string_lossy().into_owned(), frames(&file))).collect()
}

/// Returns the packet from its IP header on, and the offset of the UDP payload in it.
pub fn ip_packet(frame: &[u8]) -> (&[u8], usize) {
    let headers = Headers::ethernet(frame, 0, frame.len()).unwrap();
    assert!(matches!(headers.l4, L4::Udp { dst: proto::PORT_ROCE, .. }));
    let ip = headers.ip().unwrap();
    let at = usize::from(ip.at);
    (&frame[at..at + ip.len as usize], usize::from(headers.l4_at) + proto::UDP_LEN - at)
}
