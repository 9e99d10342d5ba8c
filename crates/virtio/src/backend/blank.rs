//! Finds out whether anything of the guest is in the memory that its VMM shared.
//!
//! QEMU with a file as memory and `share=off` hands that file over like any other. It has mapped the file
//! privately, so the guest's writes go to copies of the pages that nobody else sees: its rings stay empty
//! here. No request tells this, and only root could see how a different process mapped a file. But a driver
//! that runs has itself and its kernel in memory. If nothing of these is in the file, the file is not the
//! guest's memory.

use super::{Backend, Vring};
use crate::features::Features;
use mem::RegionSpec;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How many pages are looked at in a region, beside the rings in it.
const SAMPLES: u64 = 512;
const PAGE: u64 = 4096;

impl Backend {
    /// Returns whether rings run in memory that holds nothing but zeros, as far as this looks: at the
    /// beginning of the parts of each ring that the driver writes, and at pages in all parts of the region
    /// that holds the first ring. A hostile VMM can have the files read often, so this reads little: 2 MiB,
    /// and two pages for each ring.
    pub(super) fn is_blank(&self) -> bool {
        let rings = self.rings.iter().filter(|ring| ring.running && ring.enabled);
        let rings: Vec<_> = rings.filter_map(|ring| parts(ring, self.features)).collect();
        is_blank(&rings, &self.files)
    }
}

/// First address in the VMM, and length in bytes.
type Part = (u64, u64);

/// The parts of a ring that the driver writes.
struct Parts {
    desc: Part,
    driver: Part,
    /// The part that we write, which is no sign of a guest.
    device: Part,
}

fn parts(ring: &Vring, features: Features) -> Option<Parts> {
    let (at, n) = (ring.at?, u64::from(ring.size));
    let (driver, device) = if features.has(Features::RING_PACKED) { (4, 4) } else { (4 + 2 * n, 6 + 8 * n) };
    Some(Parts { desc: (at.desc, 16 * n), driver: (at.driver, driver), device: (at.device, device) })
}

fn is_blank(rings: &[Parts], files: &[(RegionSpec, File)]) -> bool {
    let region = |at: u64| files.iter().find(|(spec, _)| at.wrapping_sub(spec.user) < spec.len);
    let begins_blank = |(at, len): Part| {
        region(at).is_some_and(|region| are_zeros(region, at.wrapping_sub(region.0.user), len.min(PAGE)))
    };
    let is_ours = |page: u64| {
        let overlaps = |(at, len): Part| at.wrapping_sub(page) < PAGE || page.wrapping_sub(at) < len;
        rings.iter().any(|ring| overlaps(ring.device))
    };
    let mut written = rings.iter().flat_map(|ring| [ring.desc, ring.driver]);
    let first = rings.first().and_then(|ring| region(ring.desc.0));
    written.all(begins_blank)
        && first.is_some_and(|region| {
            let (user, len) = (region.0.user, region.0.len);
            let step = (len / SAMPLES).next_multiple_of(PAGE).max(PAGE);
            let mut pages = (0..len).step_by(step as usize);
            pages.all(|at| is_ours(user.wrapping_add(at)) || are_zeros(region, at, PAGE.min(len - at)))
        })
}

/// Returns whether these bytes of a region, at most a page, exist and are zero.
fn are_zeros((spec, file): &(RegionSpec, File), at: u64, len: u64) -> bool {
    let mut page = [0; PAGE as usize];
    let page = &mut page[..len as usize];
    // A region lies in its file, and so does a ring in its region.
    file.read_exact_at(page, spec.offset + at).is_ok() && page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    const USER: u64 = 0x7000_0000;
    const LEN: u64 = 64 << 20;
    const OFFSET: u64 = 0x2000;

    fn memory() -> (RegionSpec, File) {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(OFFSET + LEN).unwrap();
        (RegionSpec { gpa: 0, len: LEN, user: USER, offset: OFFSET }, file)
    }

    /// Returns a ring whose parts are in one page.
    fn ring() -> Parts {
        let at = USER + LEN / 2 + PAGE;
        Parts { desc: (at, 16 * 64), driver: (at + 1024, 4 + 2 * 64), device: (at + 1156, 6 + 8 * 64) }
    }

    #[test]
    fn one_byte_of_the_guest_is_enough() {
        let place = |(at, len): Part| OFFSET + at + len - 1 - USER;
        let sample = OFFSET + 3 * LEN / SAMPLES;
        let signs = [place(ring().desc), place(ring().driver), OFFSET, sample + PAGE - 1];
        for sign in signs {
            let files = [memory()];
            assert!(is_blank(&[ring()], &files));
            files[0].1.write_all_at(&[1], sign).unwrap();
            assert!(!is_blank(&[ring()], &files), "{sign:#x}");
        }
    }

    #[test]
    fn what_we_write_is_no_sign_of_a_guest() {
        let files = [memory()];
        let ours = Parts { device: (USER + PAGE - 2, 6 + 8 * 64), ..ring() };
        files[0].1.write_all_at(&[1; 4], OFFSET + PAGE - 2).unwrap();
        assert!(is_blank(&[ours], &files));
    }

    #[test]
    fn nothing_is_said_of_what_can_t_be_read_or_is_elsewhere() {
        let files = [memory()];
        assert!(!is_blank(&[], &files));
        assert!(!is_blank(&[Parts { driver: (USER + LEN, 4), ..ring() }], &files));
        files[0].1.set_len(OFFSET + LEN - 1).unwrap();
        let ring_at_the_end = Parts { desc: (USER + LEN - 1024, 1024), ..ring() };
        assert!(!is_blank(&[ring_at_the_end], &files));
    }

    /// Windows of verbs programs are other files.
    #[test]
    fn regions_without_rings_do_not_count() {
        let (mut spec, file) = memory();
        spec.user += LEN;
        file.write_all_at(&[1], OFFSET).unwrap();
        assert!(is_blank(&[ring()], &[memory(), (spec, file)]));
    }
}
