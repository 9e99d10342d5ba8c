//! Rings with mock drivers, well-behaved and hostile, and split rings compared with the crate `virtio-queue`.

mod heads;

use super::mock::{Buffer, DEVICE, DRIVER, Driver, GPA, RING_LEN, Ram, TABLES, USER};
use super::*;
use mem::{Region, RegionSpec, Regions};
use std::sync::Arc;
#[cfg(not(miri))]
use virtio_queue::{Queue, QueueT};
#[cfg(not(miri))]
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const SIZE: u16 = 16;
/// Bytes for buffers after the ring.
const BUFFERS: u64 = 0x1000;
const LEN: usize = (RING_LEN + BUFFERS) as usize;

/// How rings differ.
#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
struct Form {
    packed: bool,
    event_idx: bool,
    in_order: bool,
}

fn forms() -> impl Iterator<Item = Form> {
    let bit = |i: u8, n: u8| i >> n & 1 != 0;
    (0..8).map(move |i| Form { packed: bit(i, 0), event_idx: bit(i, 1), in_order: bit(i, 2) })
}

/// A chain, and its segments as (offset in memory, length).
type Taken = (Chain, Vec<(u64, usize)>);

struct Backing(Vec<u128>);

impl Backing {
    fn new() -> Self {
        Self(vec![0; LEN / 16])
    }

    fn ram(&mut self) -> Ram {
        Ram::at(self.0.as_mut_ptr().cast(), LEN)
    }
}

/// A driver and a device on one ring.
struct Pair {
    _backing: Backing,
    driver: Driver,
    ring: Ring,
    memory: Memory,
    segments: Vec<Segment>,
}

impl Pair {
    fn new(form: Form, size: u16) -> Self {
        let mut backing = Backing::new();
        let driver = Driver::new(backing.ram(), 0, size, form.packed, form.in_order);
        let (ring, memory) = device(&driver, form, driver.first_base());
        Self { _backing: backing, driver, ring, memory, segments: Vec::with_capacity(2 * MAX_CHAIN) }
    }

    /// Takes a chain; returns it with its segments as (offset in memory, length).
    fn take(&mut self, access: Access) -> Option<Taken> {
        self.try_take(access).unwrap()
    }

    fn try_take(&mut self, access: Access) -> Result<Option<Taken>, Fault> {
        let Self { driver, ring, memory, segments, .. } = self;
        segments.clear();
        let chain = dispatch!(ring, r => {
            r.look()?;
            r.take(access, memory, segments)?
        });
        let at = |s: &Segment| (driver.ram.offset(s.as_ptr()), s.len());
        Ok(chain.map(|c| (c, segments.iter().map(at).collect())))
    }

    fn complete(&mut self, chain: Chain, written: u32) -> bool {
        dispatch!(&mut self.ring, r => {
            r.complete(chain, written);
            r.publish()
        })
    }
}

fn device(driver: &Driver, form: Form, base: u32) -> (Ring, Memory) {
    let regions = driver.ram.regions();
    let at = driver.addresses();
    let layout = Layout::resolve(&regions, &at, driver.size.into(), form.packed, form.event_idx).unwrap();
    // SAFETY: the memory lives as long as the test.
    unsafe {
        let memory = Memory::new(regions, true, None).unwrap();
        let ring = match form.packed {
            true => Ring::Packed(Packed::new(
                layout,
                form.event_idx,
                form.in_order,
                base,
                Journal::mortal(driver.size),
            )),
            false => Ring::Split(Split::new(layout, form.event_idx, base)),
        };
        (ring, memory)
    }
}

/// Returns `count` buffers, each with a different length; `write`: whether the device may write them.
fn buffers(count: u16, write: bool) -> Vec<Buffer> {
    (0..count).map(|i| (GPA + RING_LEN + u64::from(i) * 256, 10 + u32::from(i), write)).collect()
}

fn places(buffers: &[Buffer]) -> Vec<(u64, usize)> {
    buffers.iter().map(|(addr, len, _)| (addr - GPA, *len as usize)).collect()
}

#[test]
fn chains_go_round_and_round() {
    for form in forms() {
        for size in [1, SIZE, if form.packed { 7 } else { 8 }] {
            let mut pair = Pair::new(form, size);
            for (lap, parts) in (0..if cfg!(miri) { 12 } else { 60 }).zip((1..=5.min(size)).cycle()) {
                let (buffers, indirect) = (buffers(parts, lap % 3 == 0), parts % 2 == 0);
                let access = if lap % 3 == 0 { Access::Write } else { Access::Read };
                let id = pair.driver.offer(&buffers, indirect).unwrap();
                assert!(pair.driver.used().is_none());
                let (chain, segments) = pair.take(access).unwrap();
                assert!(chain.ok);
                assert_eq!(segments, places(&buffers), "{form:?}");
                assert!(pair.take(access).is_none());
                pair.complete(chain, lap);
                assert_eq!(pair.driver.used(), Some((id, lap)), "{form:?}");
                assert!(pair.driver.used().is_none());
            }
        }
    }
}

#[test]
fn a_batch_is_published_at_once_and_in_order() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        for lengths in [[0; 5], [7; 5], [7, 0, 0, 9, 0]] {
            let ids: Vec<u16> = std::iter::from_fn(|| pair.driver.offer(&buffers(3, false), false)).collect();
            assert_eq!(ids.len(), 5);
            let chains: Vec<Chain> =
                std::iter::from_fn(|| pair.take(Access::Read)).map(|(chain, _)| chain).collect();
            let ended = || chains.iter().zip(lengths);
            dispatch!(&mut pair.ring, r => ended().for_each(|(chain, written)| r.complete(*chain, written)));
            assert!(pair.driver.used().is_none(), "nothing is visible before publish");
            dispatch!(&mut pair.ring, r => r.publish());
            let used: Vec<_> = std::iter::from_fn(|| pair.driver.used()).collect();
            assert_eq!(used, ids.into_iter().zip(lengths).collect::<Vec<_>>(), "{form:?}");
        }
    }
}

#[test]
fn chains_put_back_come_again() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        for _ in 0..if cfg!(miri) { 4 } else { 20 } {
            let ids = [2, 1, 3].map(|n| pair.driver.offer(&buffers(n, true), false).unwrap());
            let taken = [(); 3].map(|()| pair.take(Access::Write).unwrap().0);
            dispatch!(&mut pair.ring, r => r.rewind(&taken[1..]));
            assert_eq!(pair.take(Access::Write).unwrap().1, places(&buffers(1, true)));
            assert_eq!(pair.take(Access::Write).unwrap().1, places(&buffers(3, true)));
            taken.iter().for_each(|c| assert!(pair.complete(*c, 1) || form.event_idx));
            assert_eq!(ids.map(Some), [(); 3].map(|()| pair.driver.used().map(|u| u.0)), "{form:?}");
        }
    }
}

#[test]
fn kicks_and_interrupts_come_when_wanted() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        // Enough laps for the ring, and for the index of a split ring, to wrap around.
        for lap in 0..if cfg!(miri) { 2 * u32::from(SIZE) + 2 } else { 70_000 } {
            let want = lap % 3 != 0;
            dispatch!(&mut pair.ring, r => {
                assert!(!r.pending());
                r.want_kicks(want);
            });
            pair.driver.want_interrupts(lap % 2 == 0, form.event_idx);
            pair.driver.offer(&buffers(1, false), false).unwrap();
            assert!(dispatch!(&pair.ring, r => r.pending()));
            if want || !form.event_idx || form.packed {
                assert_eq!(pair.driver.kick_wanted(form.event_idx, 1), want, "{form:?} {lap}");
            }
            let (chain, _) = pair.take(Access::Read).unwrap();
            assert_eq!(pair.complete(chain, 0), lap % 2 == 0, "{form:?} {lap}");
            pair.driver.used().unwrap();
        }
    }
}

#[test]
fn a_stopped_ring_resumes_where_it_was() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        for lap in 0..if cfg!(miri) { 5 } else { 50 } {
            let id = pair.driver.offer(&buffers(3, false), false).unwrap();
            let base = dispatch!(&pair.ring, r => r.base());
            (pair.ring, pair.memory) = device(&pair.driver, form, base);
            let (chain, _) = pair.take(Access::Read).unwrap();
            pair.complete(chain, lap);
            assert_eq!(pair.driver.used(), Some((id, lap)), "{form:?}");
        }
    }
}

#[test]
fn what_a_dead_device_had_taken_is_taken_again() {
    let form = Form { packed: false, event_idx: false, in_order: false };
    let mut pair = Pair::new(form, SIZE);
    let ids = [(); 3].map(|()| pair.driver.offer(&buffers(1, false), false).unwrap());
    let (first, _) = pair.take(Access::Read).unwrap();
    pair.take(Access::Read).unwrap();
    pair.complete(first, 0);
    // The device dies here: two chains taken, one used.
    let base = dispatch!(&pair.ring, r => r.base());
    assert_eq!(base, 2);
    (pair.ring, pair.memory) = device(&pair.driver, form, base);
    for _ in 0..2 {
        let (chain, _) = pair.take(Access::Read).unwrap();
        pair.complete(chain, 0);
    }
    assert_eq!(ids.map(Some), [(); 3].map(|()| pair.driver.used().map(|u| u.0)));
}

#[test]
fn malformed_chains_cost_the_driver_only_themselves() {
    let good = || buffers(1, false)[0];
    let outside = GPA + LEN as u64;
    let table = |entries: u32| (GPA + RING_LEN, entries * 16, false);
    let cases: [(&str, Vec<Buffer>); 6] = [
        ("no byte", vec![good(), (GPA, 0, false)]),
        ("below memory", vec![(GPA - 1, 1, false)]),
        ("past memory", vec![good(), (outside - 1, 2, false)]),
        ("past the address space", vec![(u64::MAX, 2, false)]),
        ("longer than memory", vec![(GPA, u32::MAX, false)]),
        ("to be written", vec![good(), (GPA + RING_LEN, 10, true)]),
    ];
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        let refused = |pair: &mut Pair, id, what: &str| {
            let (chain, segments) = pair.take(Access::Read).unwrap();
            assert!(!chain.ok && segments.is_empty(), "{what} {form:?}");
            pair.complete(chain, 0);
            assert_eq!(pair.driver.used(), Some((id, 0)), "{what} {form:?}");
        };
        for (what, buffers) in &cases {
            for indirect in [false, true] {
                // A packed table may mark as writable what is only read: see `Memory::table`.
                if *what == "to be written" && indirect && form.packed {
                    continue;
                }
                let id = pair.driver.offer(buffers, indirect).unwrap();
                refused(&mut pair, id, what);
            }
        }
        // Invalid tables: one in another, a circle, impossible lengths.
        let nested = |flags: u16| {
            let (mut raw, at) = ([0u8; 16], if form.packed { 14 } else { 12 });
            raw[..8].copy_from_slice(&(GPA + RING_LEN).to_le_bytes());
            raw[8] = 16;
            raw[at..at + 2].copy_from_slice(&flags.to_le_bytes());
            raw
        };
        pair.driver.ram.write(RING_LEN, &nested(4));
        let id = pair.driver.offer_table(table(1));
        refused(&mut pair, id, "table in a table");
        pair.driver.ram.write(RING_LEN, &nested(1));
        if !form.packed {
            let id = pair.driver.offer_table(table(1));
            refused(&mut pair, id, "table that links in a circle");
        }
        for (addr, len) in [(GPA, 0), (GPA, 15), (GPA, 17), (GPA, 16 * 257), (outside - 16, 32), (0, 16)] {
            let id = pair.driver.offer_table((addr, len, false));
            refused(&mut pair, id, "table of a length that can't be");
        }
        // The ring still works.
        let id = pair.driver.offer(&buffers(2, false), true).unwrap();
        let (chain, segments) = pair.take(Access::Read).unwrap();
        assert_eq!(segments, places(&buffers(2, false)));
        pair.complete(chain, 0);
        assert_eq!(pair.driver.used(), Some((id, 0)));
    }
}

#[test]
fn read_only_buffers_are_no_room() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        for indirect in [false, true] {
            pair.driver.offer(&buffers(2, false), indirect).unwrap();
            assert!(!pair.take(Access::Write).unwrap().0.ok);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes of making regions; others do the same with few")]
fn a_buffer_in_more_regions_than_a_chain_may_have_is_refused() {
    for form in forms() {
        let mut pair = Pair::new(form, SIZE);
        let (ram, count) = (pair.driver.ram, MAX_CHAIN as u64 + 1);
        let mut regions = Regions::clone(&ram.regions());
        let (at, end) = (ram.at_offset(RING_LEN), GPA + LEN as u64);
        for i in 0..count {
            let spec = RegionSpec { gpa: end + 8 * i, len: 8, user: USER + (1 << 32) + 8 * i, offset: 0 };
            // SAFETY: buffers in the test's memory, which lives as long as the test.
            regions
                .insert(unsafe { Region::from_raw(&spec, at.wrapping_add(8 * i as usize)) }.unwrap())
                .unwrap();
        }
        // SAFETY: as above.
        pair.memory = unsafe { Memory::new(Arc::new(regions), true, None) }.unwrap();
        let capacity = pair.segments.capacity();
        for (regions, indirect) in [(count, false), (count - 1, false), (count, true), (count - 1, true)] {
            pair.driver.offer(&[(end, 8 * regions as u32, false)], indirect).unwrap();
            let (chain, segments) = pair.take(Access::Read).unwrap();
            assert_eq!(
                (chain.ok, segments.len()),
                if regions < count { (true, MAX_CHAIN) } else { (false, 0) }
            );
            assert_eq!(pair.segments.capacity(), capacity, "it grew");
            pair.complete(chain, 0);
            pair.driver.used().unwrap();
        }
        // A table in that many regions can't be read.
        let id = pair.driver.offer_table((end, 16 * (count as u32 / 2 + 1), false));
        let (chain, _) = pair.take(Access::Read).unwrap();
        assert_eq!((chain.id, chain.ok), (id, false));
    }
}

#[test]
fn a_split_chain_in_a_circle_ends() {
    let mut pair = Pair::new(Form { packed: false, event_idx: false, in_order: false }, SIZE);
    let id = pair.driver.offer(&buffers(2, false), false).unwrap();
    // The second descriptor continues with the first.
    pair.driver.ram.write(16 + 12, &[1, 0, 0, 0]);
    let (chain, _) = pair.take(Access::Read).unwrap();
    assert!(!chain.ok);
    pair.complete(chain, 0);
    assert_eq!(pair.driver.used(), Some((id, 0)));
}

#[test]
fn a_packed_chain_without_end_is_a_fault() {
    let mut pair = Pair::new(Form { packed: true, event_idx: false, in_order: false }, SIZE);
    for i in 0..u64::from(SIZE) {
        pair.driver.ram.write(16 * i + 14, &0x81u16.to_le_bytes());
    }
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::EndlessChain);
    // A chain is also followed no further in a ring with more slots.
    let most = MAX_CHAIN as u16;
    let mut pair = Pair::new(Form { packed: true, event_idx: false, in_order: false }, most);
    assert_eq!(pair.driver.offer(&[buffers(1, false)[0]; MAX_CHAIN], false), Some(0));
    assert!(pair.take(Access::Read).unwrap().0.ok);
    // The ring's last descriptor overlaps the driver's event suppression, which nobody uses here.
    let mut pair = Pair::new(Form { packed: true, event_idx: false, in_order: false }, most + 1);
    pair.driver.offer(&[buffers(1, false)[0]; MAX_CHAIN + 1], false).unwrap();
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::EndlessChain);
}

#[test]
fn faults_have_codes_of_their_own() {
    let codes = 0..100;
    let known: Vec<(u32, Fault)> = codes.filter_map(|c| Some((c, Fault::from_code(c)?))).collect();
    let expected = [Fault::IndexJump, Fault::HeadOutside, Fault::EndlessChain, Fault::Rubbish];
    assert_eq!(known, expected.map(|fault| (fault as u32, fault)));
    assert_eq!(Fault::from_code(mem::FaultWord::BUS), None);
}

/// VIRTIO 1.2, 2.7.6, 2.7.8 and 2.8.14: the lengths of areas. An area may end with the last byte of memory, but not
/// one byte after it.
#[test]
fn areas_may_end_where_memory_does() {
    let mut backing = Backing::new();
    let regions = backing.ram().regions();
    let (start, end) = (USER, USER + LEN as u64);
    for (packed, event_idx, driver, device) in [
        (false, false, 4 + 2 * 16, 4 + 8 * 16),
        (false, true, 4 + 2 * 16 + 2, 4 + 8 * 16 + 2),
        (true, false, 4, 4),
    ] {
        let resolve = |at: Addresses| Layout::resolve(&regions, &at, 16, packed, event_idx).map(|_| ());
        let first = Addresses { desc: start, driver: start, device: start };
        for (len, align, area) in [(256, 16, 0), (driver, 2, 1), (device, 4, 2)] {
            let place = |address| match area {
                0 => Addresses { desc: address, ..first },
                1 => Addresses { driver: address, ..first },
                _ => Addresses { device: address, ..first },
            };
            let align = if packed && area == 1 { 4 } else { align };
            let last = (end - len) / align * align;
            assert_eq!(resolve(place(last)), Ok(()), "{packed} {event_idx} {area}");
            assert_eq!(resolve(place(last + align)), Err(LayoutError::Outside(last + align)));
        }
    }
}

#[test]
fn layouts_are_checked() {
    let mut backing = Backing::new();
    let ram = backing.ram();
    let driver = Driver::new(ram, 0, SIZE, false, false);
    let regions = ram.regions();
    let at = driver.addresses();
    let resolve = |at: Addresses, size, packed| Layout::resolve(&regions, &at, size, packed, true).err();
    assert_eq!(resolve(at, 16, false), None);
    assert_eq!(resolve(at, 15, true), None);
    for (size, packed) in [(0, false), (0, true), (15, false), (32769, true), (65536, false)] {
        assert_eq!(resolve(at, size, packed), Some(LayoutError::Size(size)));
    }
    let end = super::mock::USER + LEN as u64;
    for packed in [false, true] {
        let odd = Addresses { desc: at.desc + 8, ..at };
        assert_eq!(resolve(odd, 16, packed), Some(LayoutError::Misaligned(odd.desc)));
        let past = Addresses { device: end - 2, ..at };
        assert_eq!(resolve(past, 16, packed), Some(LayoutError::Outside(past.device)));
        let past = Addresses { driver: u64::MAX - 1, ..at };
        assert_eq!(resolve(past, 16, packed), Some(LayoutError::Outside(past.driver)));
    }
}

/// A chain to offer: lengths of its parts, and whether they are in a table.
type Shape = (Vec<u8>, bool);

fn shaped((lens, indirect): &Shape, write: bool) -> (Vec<Buffer>, bool) {
    let buffers = lens.iter().take(6).enumerate();
    let parts: Vec<Buffer> =
        buffers.map(|(i, len)| (GPA + RING_LEN + 512 * i as u64, 1 + u32::from(*len), write)).collect();
    (if parts.is_empty() { vec![(GPA + RING_LEN, 1, write)] } else { parts }, *indirect)
}

#[test]
#[cfg(not(miri))] // The other side's memory is an mmap.
fn split_ring_agrees_with_virtio_queue() {
    let theirs = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(GPA), LEN)]).unwrap();
    let their_ram = Ram::at(theirs.get_host_address(GuestAddress(GPA)).unwrap(), LEN);
    bolero::check!().with_type::<(Vec<Vec<Shape>>, bool, bool)>().for_each(
        |(bursts, event_idx, interrupts)| {
            let form = Form { packed: false, event_idx: *event_idx, in_order: false };
            their_ram.write(0, &[0; LEN]);
            let mut pair = Pair::new(form, SIZE);
            let mut queue = Queue::new(SIZE).unwrap();
            let at = |user: u64| GuestAddress(user - super::mock::USER + GPA);
            let addresses = pair.driver.addresses();
            queue.try_set_desc_table_address(at(addresses.desc)).unwrap();
            queue.try_set_avail_ring_address(at(addresses.driver)).unwrap();
            queue.try_set_used_ring_address(at(addresses.device)).unwrap();
            queue.set_event_idx(*event_idx);
            queue.set_ready(true);
            for (i, burst) in bursts.iter().take(8).enumerate() {
                for shape in burst.iter().take(SIZE.into()) {
                    let (buffers, indirect) = shaped(shape, false);
                    pair.driver.offer(&buffers, indirect);
                }
                pair.driver.want_interrupts(*interrupts, *event_idx);
                their_ram.write(0, &pair.driver.ram.read(0, LEN));
                let mut ours = Vec::new();
                while let Some((chain, segments)) = pair.take(Access::Read) {
                    ours.push((chain, segments));
                }
                let mut used = 0;
                for (chain, segments) in &ours {
                    let their_chain = queue.pop_descriptor_chain(&theirs).unwrap();
                    let head = their_chain.head_index();
                    let their_segments: Vec<_> =
                        their_chain.map(|d| (d.addr().0 - GPA, d.len() as usize)).collect();
                    assert_eq!((chain.id, segments), (head, &their_segments));
                    queue.add_used(&theirs, head, i as u32).unwrap();
                    dispatch!(&mut pair.ring, r => r.complete(*chain, i as u32));
                    used += 1;
                }
                assert!(queue.pop_descriptor_chain(&theirs).is_none());
                let notify = dispatch!(&mut pair.ring, r => r.publish());
                // The crate's device checks the driver's wish only with event indexes.
                if used > 0 {
                    let theirs = queue.needs_notification(&theirs).unwrap();
                    assert!(notify == theirs || !event_idx);
                }
                assert_eq!(pair.driver.ram.read(0, LEN), their_ram.read(0, LEN), "used rings differ");
                while pair.driver.used().is_some() {}
            }
        },
    );
}

#[test]
fn any_well_behaved_driver_is_served() {
    bolero::check!().with_type::<(Form, Vec<(Vec<Shape>, u8)>)>().for_each(|(form, steps)| {
        let mut pair = Pair::new(*form, SIZE);
        let mut expected = std::collections::VecDeque::new();
        let mut taken = std::collections::VecDeque::new();
        let mut completed = std::collections::VecDeque::new();
        for (burst, count) in steps {
            for shape in burst {
                let (buffers, indirect) = shaped(shape, false);
                if let Some(id) = pair.driver.offer(&buffers, indirect) {
                    expected.push_back((id, places(&buffers)));
                }
            }
            for _ in 0..count % 8 {
                let Some((chain, segments)) = pair.take(Access::Read) else {
                    assert!(expected.is_empty());
                    break;
                };
                let (id, places) = expected.pop_front().unwrap();
                assert_eq!((chain.id, segments), (id, places));
                taken.push_back(chain);
            }
            for written in 0..u32::from(count / 8 % 8) {
                let Some(chain) = taken.pop_front() else { break };
                dispatch!(&mut pair.ring, r => r.complete(chain, written));
                completed.push_back((chain.id, written));
            }
            // A burst ends with everything published.
            dispatch!(&mut pair.ring, r => r.publish());
            while let Some(used) = pair.driver.used() {
                assert_eq!(Some(used), completed.pop_front());
            }
            assert!(completed.is_empty());
        }
    });
}

/// Whatever is in memory: no panic, no endless burst, no access outside memory.
#[test]
fn any_hostile_driver_is_survived() {
    type Scribble = (u16, Vec<u8>);
    bolero::check!().with_type::<(Form, Vec<Scribble>, bool)>().for_each(|(form, scribbles, write)| {
        let mut pair = Pair::new(*form, SIZE);
        let access = if *write { Access::Write } else { Access::Read };
        let ram = pair.driver.ram;
        // Starts with something to take, so that random writes hit what matters.
        while pair.driver.offer(&buffers(3, *write), true).is_some() {}
        for (at, bytes) in scribbles {
            // Descriptors, available ring, used ring, tables, buffers.
            let area = [0, DRIVER, DEVICE, TABLES, RING_LEN][usize::from(at >> 8) % 5];
            ram.write(area + u64::from(at & 0xff), &bytes[..bytes.len().min(256)]);
            let Pair { ring, memory, segments, .. } = &mut pair;
            let served = dispatch!(ring, r => (|| {
                r.look()?;
                let mut taken = Vec::new();
                while taken.len() < 64 {
                    segments.clear();
                    let Some(chain) = r.take(access, memory, segments)? else { break };
                    assert!(segments.len() <= MAX_CHAIN);
                    for segment in segments.iter() {
                        assert!(ram.holds(segment.as_ptr(), segment.len()) && !segment.is_empty());
                    }
                    taken.push(chain);
                }
                assert!(taken.len() <= SIZE.into(), "more taken than there can be");
                let keep = taken.len() / 2;
                r.rewind(&taken[keep..]);
                taken[..keep].iter().for_each(|c| r.complete(*c, 1));
                r.publish();
                r.want_kicks(keep % 2 == 0);
                Ok::<_, Fault>(())
            })());
            if served.is_err() {
                return;
            }
        }
    });
}
