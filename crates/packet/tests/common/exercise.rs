//! Everything a hostile packet passes through, and what must hold afterwards.

use packet::checksum::{L4Check, verify_l4};
use packet::{Headers, IcmpError, L4, Mac, ParseError, edit, neighbour, proto, reply, tunnel};
use std::net::IpAddr;

const MAC: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);

/// Parses all of `bytes`, which start at `at` of a packet that ends at `len`. Then reads, edits and answers
/// the packet in every way.
pub fn exercise(bytes: &[u8], at: usize, len: usize) {
    for parsed in [Headers::ethernet(bytes, at, len), Headers::network(bytes, at, len)] {
        let Ok(headers) = parsed else { continue };
        check_bounds(&headers, bytes.len().min(len));
        check_quoted(&headers, bytes, len);
        check_edits(&headers, bytes);
        check_replies(&headers, bytes);
        if let Ok(Some(tunnel)) = tunnel(bytes, &headers, len) {
            assert!(tunnel.inner_at <= tunnel.inner_end && tunnel.inner_end <= len);
            exercise(bytes, tunnel.inner_at, tunnel.inner_end);
        }
    }
}

/// Checks that all headers lie in the bytes at hand.
fn check_bounds(headers: &Headers, at_hand: usize) {
    assert!(headers.at <= headers.l3_at && usize::from(headers.l3_at) <= at_hand);
    let Some(ip) = headers.ip() else { return };
    assert!(u32::from(ip.header_len) <= ip.len);
    assert!(usize::from(ip.at + ip.header_len) <= at_hand);
    let l4_len = match headers.l4 {
        L4::Tcp { header_len, .. } => usize::from(header_len),
        L4::Udp { .. } => proto::UDP_LEN,
        L4::Sctp { .. } => proto::SCTP_LEN,
        L4::Icmp { .. } => proto::ICMP_LEN,
        L4::Other => 0,
    };
    assert!(usize::from(headers.l4_at) + l4_len <= at_hand);
    if headers.l4 != L4::Other {
        assert_eq!(headers.l4_at, ip.at + ip.header_len);
    }
}

fn other(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => IpAddr::from([10, 9, 8, 7]),
        IpAddr::V6(_) => IpAddr::from([0xfd; 16]),
    }
}

/// Checks that edits keep a right checksum right and a wrong one wrong, and that the headers they leave equal
/// those parsed anew.
fn check_edits(headers: &Headers, bytes: &[u8]) {
    let Some(ip) = headers.ip() else { return };
    let (mut bytes, mut edited) = (bytes.to_vec(), headers.clone());
    let before = verify_l4(&bytes, headers);
    edit::set_source(&mut bytes, &mut edited, other(ip.src), false).unwrap();
    edit::set_destination(&mut bytes, &mut edited, other(ip.dst), false).unwrap();
    edit::set_tos(&mut bytes, &mut edited, !ip.tos).unwrap();
    edit::decrement_ttl(&mut bytes, &mut edited).unwrap();
    assert_eq!(verify_l4(&bytes, &edited), before);
    let (at, end) = (usize::from(ip.at), usize::from(ip.at) + ip.len as usize);
    let again = Headers::network(&bytes, at, end).map(|again| (again.l3, again.l4));
    assert_eq!(again, Ok((edited.l3, edited.l4)));
}

fn check_quoted(headers: &Headers, bytes: &[u8], len: usize) {
    let Ok(Some(mut quoted)) = headers.quoted(bytes, len) else { return };
    let mut bytes = bytes.to_vec();
    let before = verify_l4(&bytes, headers);
    let addr = other(quoted.ip().unwrap().src);
    edit::set_quoted_source(&mut bytes, headers, &mut quoted, addr, false).unwrap();
    assert_eq!(verify_l4(&bytes, headers), before);
    assert_eq!(headers.quoted(&bytes, len), Ok(Some(quoted)));
}

/// Checks that answers are packets that parse, with right checksums.
fn check_replies(headers: &Headers, bytes: &[u8]) {
    let mut out = [0; 2048];
    let from = other(headers.ip().map_or(IpAddr::from([0; 4]), |ip| ip.src));
    let error = IcmpError::TooBig { mtu: 1400 };
    let answers = [
        reply::icmp_error(&mut out.clone(), bytes, headers, error, MAC, from).map(|_| ()),
        reply::tcp_reset(&mut out.clone(), bytes, headers, MAC).map(|_| ()),
    ];
    for (index, answer) in answers.into_iter().enumerate() {
        if answer.is_err() {
            continue;
        }
        let len = match index {
            0 => reply::icmp_error(&mut out, bytes, headers, error, MAC, from),
            _ => reply::tcp_reset(&mut out, bytes, headers, MAC),
        };
        let answer = &out[..len.unwrap()];
        let parsed = parse_like(headers, answer);
        match parsed {
            Ok(parsed) => assert_eq!(verify_l4(answer, &parsed), L4Check::Right),
            // An answer to a packet to a loopback address has that address as its source.
            Err(error) => assert_eq!(error, ParseError::IpSource),
        }
    }
    let _ = reply::echo_reply(
        &mut out,
        bytes,
        headers,
        MAC,
        headers.ip().map_or(std::net::Ipv4Addr::LOCALHOST.into(), |ip| ip.dst),
    );
    let _ = neighbour::neighbour_advertisement(&mut out, bytes, headers, MAC, true, None);
}

fn parse_like(headers: &Headers, answer: &[u8]) -> Result<Headers, ParseError> {
    if headers.eth.is_some() {
        Headers::ethernet(answer, 0, answer.len())
    } else {
        Headers::network(answer, 0, answer.len())
    }
}
