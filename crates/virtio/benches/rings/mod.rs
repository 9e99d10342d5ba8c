//! A guest's pair of rings in plain memory, and both sides of them.

#[path = "../../../engine/benches/stages/callgrind.rs"]
pub mod callgrind;
mod device;
mod drivers;
pub mod sources;

use device::{Device, FROM_GUEST, RINGS, TO_GUEST};
use drivers::mock::{Driver, GPA, RING_LEN, Ram};
use mem::BURST;

/// Number of descriptors of a ring.
const SIZE: u16 = 256;
/// Bytes of each of the guest's buffers.
const BUFFER: u64 = 2048;
/// Bytes of a packet with its virtio-net header: 64 on the wire.
const PACKET: u32 = 12 + 60;

pub struct Guest {
    drivers: [Driver; RINGS],
    pub device: Device,
}

impl Guest {
    /// Creates a guest with empty rings of either form. `logged`: the VMM wants to know which pages are
    /// written.
    pub fn new(packed: bool, logged: bool) -> Self {
        let len = RINGS * RING_LEN as usize + BURST * BUFFER as usize;
        // Whole pages, for the alignment of rings.
        let memory = Vec::leak(vec![[0_u64; 512]; len / 4096]);
        let ram = Ram::at(memory.as_mut_ptr().cast(), len);
        let drivers = [0, 1].map(|ring| Driver::new(ram, ring * RING_LEN, SIZE, packed, true));
        let device = Device::new(ram, &drivers, PACKET as usize - 12, logged);
        // Lets the device find the region of its buffers, as it would have after any packet.
        let mut guest = Self { drivers, device };
        guest.send_burst();
        guest.offer_burst();
        assert_eq!((guest.device.receive(), guest.device.send()), (BURST, BURST));
        guest.reclaim();
        guest
    }

    /// Makes a burst of packets available.
    pub fn send_burst(&mut self) {
        self.offer(FROM_GUEST, PACKET, false);
    }

    /// Makes room for a burst available.
    pub fn offer_burst(&mut self) {
        self.offer(TO_GUEST, BUFFER as u32, true);
    }

    fn offer(&mut self, ring: usize, len: u32, writable: bool) {
        for number in 0..BURST as u64 {
            let at = GPA + RINGS as u64 * RING_LEN + number * BUFFER;
            self.drivers[ring].offer(&[(at, len, writable)], false).expect("a free descriptor");
        }
    }

    /// Takes back all buffers that the device has used.
    pub fn reclaim(&mut self) {
        for driver in &mut self.drivers {
            while driver.used().is_some() {}
        }
    }
}
