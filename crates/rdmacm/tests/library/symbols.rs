//! The versions of symbols: those that are linked, those that are promised.

use std::collections::BTreeSet;

fn promised() -> BTreeSet<String> {
    include_str!("../../symbols.txt")
        .lines()
        .map(|line| line.trim_start_matches("T ").replace("@@", "@"))
        .collect()
}

/// Every symbol of the version script, with its version.
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

/// rsockets are there, and refuse.
#[test]
fn rsockets_refuse() {
    unsafe extern "C" {
        fn rsocket(domain: i32, kind: i32, protocol: i32) -> i32;
        fn riowrite(socket: i32, data: *const u8, len: usize, offset: i64, flags: i32) -> isize;
    }
    // SAFETY: they look at none of their arguments.
    unsafe {
        assert_eq!((rsocket(2, 1, 0), crate::programs::errno()), (-1, libc::EOPNOTSUPP));
        assert_eq!(riowrite(1, std::ptr::null(), 0, 0, 0), -1);
    }
}
