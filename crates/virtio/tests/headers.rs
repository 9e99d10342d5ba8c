//! virtio-net headers with arbitrary bytes, as a driver may write them.

use mem::vnet::{self, DataValid, VNET_HEADER_SHORT};
use mem::{Accepts, Csum};

/// An accepted header was negotiated, lies within the frame, and is written as it was read.
#[test]
fn any_header_is_read_or_refused() {
    bolero::check!().with_type::<([u8; VNET_HEADER_SHORT], u16, [bool; 5])>().for_each(
        |(header, len, [csum, tso4, tso6, ecn, is_near])| {
            let allowed = Accepts { csum: *csum, tso4: *tso4, tso6: *tso6, ecn: *ecn };
            // Often a frame that ends at its checksum.
            let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
            let len = usize::from(*len);
            let len = if *is_near { field(6) + field(8) + len % 4 } else { len };
            let read = |header| vnet::parse(header, len, allowed, DataValid::Ignore);
            let Ok(offload) = read(header) else { return };
            match offload.csum {
                Csum::Unknown => assert_eq!(offload.gso, None),
                Csum::Valid => panic!("a driver does not check checksums for us"),
                Csum::Partial { start, offset } => {
                    assert!(*csum && usize::from(start) + usize::from(offset) + 2 <= len);
                }
            }
            if let Some(gso) = offload.gso {
                assert!(gso.size > 0 && if gso.v6 { *tso6 } else { *tso4 } && (*ecn || !gso.ecn));
            }
            let written = vnet::build(&offload);
            assert_eq!(written.first_chunk().map(read), Some(Ok(offload)));
        },
    );
}
