//! Link bandwidths (draft-ietf-idr-link-bandwidth), and the shares of flows that paths get by them.

use crate::route::MAX_PATHS;

/// How far a share may be from the bandwidth's, of all flows, before more places are tried.
const NEAR: f64 = 0.01;

/// The bandwidth of a path: a normal, positive number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(u32);

impl Bandwidth {
    /// Reads an IEEE number, bytes per second. `None`: it is no bandwidth.
    pub(crate) fn read(bytes: [u8; 4]) -> Option<Self> {
        let number = f32::from_be_bytes(bytes);
        // The bits of positive numbers have the order of the numbers.
        (number.is_normal() && number > 0.0).then(|| Self(number.to_bits()))
    }

    /// Returns the bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// Returns the number of places of each path, so that they are shared in proportion to bandwidths. Each path has one
/// at least, and all have [`MAX_PATHS`] at most. Of all numbers of places, it takes the lowest with which no share is
/// off by more than [`NEAR`] of all flows, else that with the least error.
pub(crate) fn places(bandwidths: &[Bandwidth]) -> Vec<usize> {
    let rates = || bandwidths.iter().map(|bandwidth| f64::from(bandwidth.bytes_per_second()));
    let sum: f64 = rates().sum();
    let shares: Vec<f64> = rates().map(|rate| rate / sum).collect();
    let mut best = (f64::INFINITY, Vec::new());
    for total in shares.len()..=MAX_PATHS {
        let places = apportion(&shares, total);
        let error = |(place, share): (&usize, &f64)| (*place as f64 / total as f64 - share).abs();
        let error = places.iter().zip(&shares).map(error).fold(0.0, f64::max);
        if error < best.0 {
            best = (error, places);
        }
        if best.0 <= NEAR {
            break;
        }
    }
    best.1
}

/// Gives places in proportion to shares: to each one at least, and the rest to those that lack most.
fn apportion(shares: &[f64], total: usize) -> Vec<usize> {
    let lack = |at: usize, places: &[usize]| shares[at] * total as f64 - places[at] as f64;
    let mut places: Vec<_> = shares.iter().map(|share| ((share * total as f64) as usize).max(1)).collect();
    while places.iter().sum::<usize>() != total {
        let is_short = places.iter().sum::<usize>() < total;
        let may_change = (0..places.len()).filter(|at| is_short || places[*at] > 1);
        let by_lack = |a: &usize, b: &usize| lack(*a, &places).total_cmp(&lack(*b, &places));
        let chosen = if is_short { may_change.max_by(by_lack) } else { may_change.min_by(by_lack) };
        match chosen {
            Some(at) if is_short => places[at] += 1,
            Some(at) => places[at] -= 1,
            None => break,
        }
    }
    places
}
