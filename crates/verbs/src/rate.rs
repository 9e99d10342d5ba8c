//! Rates: `ibv_rate`, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::c_int;

/// `IBV_RATE_MAX`: any rate, or an unknown one.
const MAX: u32 = 0;

/// Each rate, the multiple of 2.5 Gbit/s if it is one, and Mbit/s.
const RATES: [(u32, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    RATES.iter().find(|known| known.0 == rate).and_then(|known| known.1).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> u32 {
    RATES.iter().find(|known| known.1 == Some(multiple)).map_or(MAX, |known| known.0)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|known| known.2 == mbps).map_or(MAX, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_goes_both_ways() {
        for (rate, multiple, mbps) in RATES {
            assert_eq!((ibv_rate_to_mbps(rate), mbps_to_ibv_rate(mbps)), (mbps, rate));
            assert_eq!(ibv_rate_to_mult(rate), multiple.unwrap_or(-1));
            assert!(multiple.is_none_or(|multiple| mult_to_ibv_rate(multiple) == rate));
        }
        assert_eq!(
            (ibv_rate_to_mult(1), ibv_rate_to_mbps(99), mult_to_ibv_rate(3), mbps_to_ibv_rate(7)),
            (-1, -1, 0, 0)
        );
    }
}
