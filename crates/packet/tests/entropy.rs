//! Test vectors of the entropy hash. Every executor must reproduce them.

use packet::{Mac, entropy, entropy_l2, entropy_port};

#[test]
fn addresses_protocol_and_ports_make_the_hash() {
    let vectors = [
        ("10.1.1.1", "10.1.1.2", 6, 1000, 80, 0xb0c4_595a, 55642),
        ("10.1.1.2", "10.1.1.1", 6, 80, 1000, 0x2cdf_65e2, 58850),
        ("fd00:1::1", "fd00:1::2", 17, 5000, 53, 0x53b3_820c, 49676),
        ("0.0.0.0", "0.0.0.0", 0, 0, 0, 0x9208_e1e8, 57832),
        ("192.0.2.1", "198.51.100.7", 1, 0x1234, 0x1234, 0x28a8_772e, 63278),
    ];
    for (src, dst, protocol, sport, dport, hash, port) in vectors {
        let computed = entropy(src.parse().unwrap(), dst.parse().unwrap(), protocol, sport, dport);
        assert_eq!((computed, entropy_port(computed)), (hash, port), "{src} {dst}");
    }
}

#[test]
fn macs_and_type_make_the_hash_of_other_frames() {
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    assert_eq!(entropy_l2(a, b, 0x88cc), 0x1f55_3323);
}

#[test]
fn ports_are_dynamic() {
    assert_eq!((entropy_port(0), entropy_port(u32::MAX)), (49152, 65535));
}
