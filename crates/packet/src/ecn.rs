//! Explicit congestion notification across tunnels (RFC 6040).
//!
//! Arguments are traffic class bytes: DSCP in the upper six bits, ECN in the lower two.

/// Mask of the ECN field in a traffic class.
pub const ECN_MASK: u8 = 3;
/// Not ECN-capable transport.
pub const NOT_ECT: u8 = 0;
/// ECN-capable transport, codepoint 1.
pub const ECT_1: u8 = 1;
/// ECN-capable transport, codepoint 0.
pub const ECT_0: u8 = 2;
/// Congestion experienced.
pub const CE: u8 = 3;

/// The outer header is marked with congestion, but the inner packet's transport does not know ECN: the packet must be
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("congestion experienced by a packet that is not ECN-capable")]
pub struct EcnDrop;

/// Returns the ECN field of the outer header, in normal mode (RFC 6040, 4.1): a copy of the inner one.
#[must_use]
pub const fn ecn_encap(inner_tos: u8) -> u8 {
    inner_tos & ECN_MASK
}

/// Returns the traffic class of the inner packet after decapsulation (RFC 6040, 4.2): its DSCP and the
/// combined ECN field.
///
/// # Errors
/// [`EcnDrop`] for an outer CE on an inner Not-ECT.
pub const fn ecn_decap(inner_tos: u8, outer_tos: u8) -> Result<u8, EcnDrop> {
    let ecn = match (inner_tos & ECN_MASK, outer_tos & ECN_MASK) {
        (NOT_ECT, CE) => return Err(EcnDrop),
        (NOT_ECT, _) => NOT_ECT,
        (CE, _) | (_, CE) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Ok(inner_tos & !ECN_MASK | ecn)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6040, figure 4: rows by inner, columns by outer Not-ECT, ECT(0), ECT(1), CE.
    #[test]
    fn decapsulation_follows_the_table() {
        let outer = [NOT_ECT, ECT_0, ECT_1, CE];
        let table = [
            (NOT_ECT, [Ok(NOT_ECT), Ok(NOT_ECT), Ok(NOT_ECT), Err(EcnDrop)]),
            (ECT_0, [Ok(ECT_0), Ok(ECT_0), Ok(ECT_1), Ok(CE)]),
            (ECT_1, [Ok(ECT_1), Ok(ECT_1), Ok(ECT_1), Ok(CE)]),
            (CE, [Ok(CE), Ok(CE), Ok(CE), Ok(CE)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in outer.into_iter().zip(row) {
                assert_eq!(ecn_decap(inner, outer), expected, "{inner} in {outer}");
                assert_eq!(ecn_decap(0xb8 | inner, 0x28 | outer), expected.map(|ecn| 0xb8 | ecn));
            }
        }
    }

    #[test]
    fn encapsulation_copies_the_field_alone() {
        assert_eq!(ecn_encap(0xb8 | CE), CE);
        assert_eq!(ecn_encap(0xb8 | ECT_0), ECT_0);
    }
}
