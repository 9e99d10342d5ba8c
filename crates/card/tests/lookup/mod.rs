//! The hardware look-ups of MACs and routes, against the shadows that wrote their tables.
#![cfg(feature = "card-test")]

mod bench;
mod bridge;
mod random;
mod route;

use card::hash::Words;

const SECRET: Words = [
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
    0x0f1e_2d3c_4b5a_6978,
    0x8796_a5b4_c3d2_e1f0,
    0x1111_2222_3333_4444,
];

/// Returns the secret in the form that a port takes.
fn secret() -> [u8; 40] {
    let mut bytes = [0; 40];
    for (bytes, word) in bytes.chunks_mut(8).zip(SECRET) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
