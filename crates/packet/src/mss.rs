//! The maximum segment size that a TCP SYN announces (RFC 9293, 3.7.1).

use crate::{Fragment, Headers, L4, proto};

/// Returns the MSS option of a SYN or SYN-ACK: the offset of its value in the frame, bytes, and the value.
///
/// `None` if the packet has no such option, if `bytes` ends before it, if the packet carries data, or if its
/// options are malformed. Two MSS options count as malformed, because the receiver may use either.
#[must_use]
pub fn mss(bytes: &[u8], headers: &Headers) -> Option<(usize, u16)> {
    let (ip, L4::Tcp { flags, header_len, .. }) = (headers.ip()?, headers.l4) else { return None };
    let at = usize::from(headers.l4_at);
    let end = at + usize::from(header_len);
    let bare = end == usize::from(ip.at) + ip.len as usize;
    if flags & proto::TCP_SYN == 0 || !bare || ip.fragment != Fragment::Whole {
        return None;
    }
    let first = at + proto::TCP_LEN;
    among(bytes.get(first..end)?).map(|(at, value)| (first + at, value))
}

/// Returns the MSS option's value, and the offset of the value in the options (RFC 9293, 3.1).
fn among(options: &[u8]) -> Option<(usize, u16)> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const MSS: u8 = 2;
    let (mut at, mut found) = (0, None);
    loop {
        at += match *options.get(at..)? {
            [] | [END, ..] => return found,
            [NOTHING, ..] => 1,
            [MSS, 4, high, low, ..] if found.is_none() => {
                found = Some((at + 2, u16::from_be_bytes([high, low])));
                4
            }
            [MSS, ..] | [_] | [_, 0 | 1, ..] => return None,
            [_, len, ..] => usize::from(len),
        };
    }
}
