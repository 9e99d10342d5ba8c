//! The versions of symbols: those that are linked equal those that are promised.

use std::collections::BTreeSet;

fn promised() -> BTreeSet<String> {
    include_str!("../../symbols.txt")
        .lines()
        .map(|line| line.trim_start_matches("T ").replace("@@", "@"))
        .collect()
}

/// Returns every symbol of the version script, with its version.
fn linked() -> BTreeSet<String> {
    let (mut node, mut symbols) = ("", BTreeSet::new());
    for line in include_str!("../../librdmacm.map").lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        } else if let Some(symbol) = line.strip_suffix(';').filter(|symbol| symbol.starts_with('r')) {
            symbols.insert(format!("{symbol}@{node}"));
        }
    }
    symbols
}

#[test]
fn the_version_script_has_what_is_promised() {
    assert_eq!(linked(), promised());
    assert_eq!(promised().len(), 68);
}

/// Functions that rsockets do not offer are refused.
#[test]
fn rsockets_refuse() {
    let (ip, stream) = (libc::AF_INET, libc::SOCK_STREAM);
    let flags = [libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK].map(|flag| (ip, stream | flag));
    for (domain, kind) in [[(ip, libc::SOCK_DGRAM), (libc::AF_UNIX, stream)], flags].concat() {
        let made = rdmacm::rsocket::rsocket(domain, kind, 0);
        assert_eq!((made, crate::programs::errno()), (-1, libc::EOPNOTSUPP));
    }
    let wrote = rdmacm::rsocket::riowrite(1, std::ptr::null(), 0, 0, 0);
    assert_eq!((wrote, crate::programs::errno()), (usize::MAX, libc::EOPNOTSUPP));
}
