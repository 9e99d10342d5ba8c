//! `route_lookup` against the shadows of the route memory.
use super::bench::{Answer, Bench, Figures, Manner, Unit, run, update};
use super::random::Random;
use super::secret;
use card::route6::Routes6;
use card::step::{Line, Step};
use card::trie::Trie;
use rtl::RouteUnitSim;
use std::collections::BTreeMap;

/// Binary logarithm of the number of lines, as in the top module.
const BITS6: u32 = 10;

/// A destination, and the contents of the network's line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    v6: bool,
    dst: u128,
    vrf: u16,
    root: u32,
    lengths: u128,
}

impl Unit for RouteUnitSim {
    type Key = Key;
    const REQUESTERS: usize = 5;

    fn ask(&mut self, ask: Option<(u16, &Key)>) {
        self.set_s_valid(ask.is_some());
        if let Some((tag, key)) = ask {
            self.set_s_tag(tag);
            self.set_s_v6(key.v6);
            self.s_dst_mut().set(0, 128, key.dst);
            self.set_s_vrf(key.vrf);
            self.set_s_root(key.root);
            self.s_lengths6_mut().set(0, 128, key.lengths);
        }
    }

    fn ready(&self) -> bool {
        self.s_ready()
    }

    fn result(&self) -> Option<(u16, u64)> {
        self.m_valid().then(|| (self.m_tag(), self.m_result().into()))
    }

    fn request(&self, requester: usize) -> Option<(u32, u16)> {
        let line = self.req_line().get(27 * requester, 27);
        let context = self.req_context() >> (10 * requester) & 0x3ff;
        (self.req_valid() >> requester & 1 != 0).then_some((line as u32, context as u16))
    }

    fn set_request_ready(&mut self, ready: u8) {
        self.set_req_ready(ready);
    }

    fn set_response(&mut self, requester: usize, response: Option<&(u16, Line)>) {
        let valid = self.resp_valid() & !(1 << requester) | u8::from(response.is_some()) << requester;
        self.set_resp_valid(valid);
        if let Some((context, line)) = response {
            let others = self.resp_context() & !(0x3ff << (10 * requester));
            self.set_resp_context(others | u64::from(*context) << (10 * requester));
            self.resp_data_mut().set_bytes(32 * requester, line);
        }
    }

    fn response_ready(&self, requester: usize) -> bool {
        self.resp_ready() >> requester & 1 != 0
    }

    fn eval(&mut self) {
        (**self).eval();
    }

    fn clock(&mut self) {
        (**self).clock();
    }
}

fn bench(manner: Manner) -> Bench<RouteUnitSim> {
    let mut unit = RouteUnitSim::new();
    unit.secret_mut().set_bytes(0, &secret());
    unit.set_s_valid(false);
    unit.set_resp_valid(0);
    unit.reset(4);
    Bench::new(unit, manner)
}

const VRFS: [u16; 3] = [0, 7, 4095];
const LENGTHS4: [u8; 12] = [0, 8, 12, 15, 16, 17, 20, 23, 24, 25, 30, 32];
const LENGTHS6: [u8; 16] = [0, 1, 16, 29, 32, 40, 47, 48, 52, 56, 60, 63, 64, 96, 127, 128];

/// The routes of the networks, in both shadows and in a naive map.
struct Routes {
    trie: Trie,
    roots: BTreeMap<u16, u32>,
    table: Routes6,
    /// Nexthop by network, family, length and prefix.
    naive: BTreeMap<(u16, bool, u8, u128), u32>,
}

/// Returns the first `length` bits of an address.
fn mask(v6: bool, dst: u128, length: u8) -> u128 {
    let rest = if v6 { 128 } else { 32 } - u32::from(length);
    dst.checked_shr(rest).and_then(|head| head.checked_shl(rest)).unwrap_or(0)
}

/// Makes addresses with long common prefixes.
fn address(random: &mut Random, v6: bool) -> u128 {
    if v6 {
        let bytes = [0x20, 1, random.pick(&[0, 0x80]), random.below(3) as u8, random.below(4) as u8, 0];
        let head = bytes.iter().fold(0, |head: u128, &byte| head << 8 | u128::from(byte)) << 80;
        head | u128::from(random.below(16)) << 64 | u128::from(random.next() & 0x8000_0000_0000_0003)
    } else {
        let [b, c] = [random.below(3), random.pick(&[0, 1, 128, 255])];
        u128::from(random.pick(&[10, 11, 192]) << 24 | b << 16 | c << 8 | (random.below(8) * 37 % 256))
    }
}

impl Routes {
    fn new(bench: &mut Bench<RouteUnitSim>) -> Self {
        let (mut trie, mut roots) = (Trie::new(16), BTreeMap::new());
        for vrf in VRFS {
            let (root, steps) = trie.add(vrf).expect("room");
            steps.iter().for_each(|step| bench.write(step));
            roots.insert(vrf, root);
        }
        Self { trie, roots, table: Routes6::new(BITS6, super::SECRET), naive: BTreeMap::new() }
    }

    /// Adds a route, removes one, or changes its nexthop.
    fn change(&mut self, random: &mut Random, v6: bool, insert: u32) -> Vec<Step> {
        let vrf = random.pick(&VRFS);
        let length = if v6 { random.pick(&LENGTHS6) } else { random.pick(&LENGTHS4) };
        let prefix = mask(v6, address(random, v6), length);
        let (nexthop, at) = (random.below(1 << 20), (vrf, v6, length, prefix));
        if random.chance(insert) {
            self.naive.insert(at, nexthop);
            if v6 {
                self.table.insert(vrf, prefix, length, nexthop).expect("room")
            } else {
                self.trie.insert(vrf, prefix as u32, length, nexthop).expect("room")
            }
        } else {
            self.naive.remove(&at);
            if v6 {
                self.table.remove(vrf, prefix, length)
            } else {
                self.trie.remove(vrf, prefix as u32, length).expect("known")
            }
        }
    }

    fn key(&self, random: &mut Random, v6: bool) -> Key {
        let vrf = random.pick(&VRFS);
        let (root, lengths) = (self.roots[&vrf], self.table.lengths(vrf));
        Key { v6, dst: address(random, v6), vrf, root, lengths }
    }

    /// Returns the bits of the right result, as `forward_result_t`.
    fn right(&self, key: &Key) -> u64 {
        let lengths = (0..=if key.v6 { 128 } else { 32 }).rev();
        let mut nexthops = lengths
            .filter_map(|length| self.naive.get(&(key.vrf, key.v6, length, mask(key.v6, key.dst, length))));
        nexthops.next().map_or(0, |&nexthop| 1 << 20 | u64::from(nexthop))
    }
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
    Both,
}

impl Family {
    fn v6(self, random: &mut Random) -> bool {
        match self {
            Self::V4 => false,
            Self::V6 => true,
            Self::Both => random.chance(50),
        }
    }
}

fn look_up(manner: Manner, family: Family, count: usize, percent: u32) -> Figures {
    let mut bench = bench(manner);
    let mut routes = Routes::new(&mut bench);
    for number in 0..600 {
        let steps = routes.change(&mut bench.random, number % 2 == 0, 90);
        steps.iter().for_each(|step| bench.write(step));
    }
    let found = std::cell::Cell::new(0);
    let check = |answer: &Answer<Key>| {
        let right = routes.right(&answer.key);
        assert_eq!(answer.result, right, "{:x?}", answer.key);
        found.set(found.get() + usize::from(right != 0));
    };
    let key = |random: &mut Random| {
        let v6 = family.v6(random);
        routes.key(random, v6)
    };
    let figures = run(&mut bench, count, percent, key, check);
    assert!(found.get() > count / 2, "{} found", found.get());
    figures
}

#[test]
fn finds_the_longest_prefix() {
    look_up(Manner::Random(200), Family::V4, 20_000, 70).print("IPv4, random memory");
    look_up(Manner::Random(200), Family::V6, 3000, 4).print("IPv6, random memory");
    look_up(Manner::Random(60), Family::Both, 5000, 100).print("both, random memory");
    look_up(Manner::Random(3), Family::Both, 5000, 100).print("both, quick random memory");
}

/// Measures with routes of one length only, so that all look-ups go equally deep.
fn of_one_length(v6: bool, length: u8, manner: Manner, count: usize, percent: u32) -> Figures {
    let mut bench = bench(manner);
    let mut routes = Routes::new(&mut bench);
    let mut keys = Vec::new();
    for _ in 0..200 {
        let dst = address(&mut bench.random, v6);
        let (vrf, nexthop) = (VRFS[0], bench.random.below(1 << 20));
        let prefix = mask(v6, dst, length);
        let steps = if v6 {
            routes.table.insert(vrf, prefix, length, nexthop).expect("room")
        } else {
            routes.trie.insert(vrf, prefix as u32, length, nexthop).expect("room")
        };
        steps.iter().for_each(|step| bench.write(step));
        routes.naive.insert((vrf, v6, length, prefix), nexthop);
        keys.push(Key { v6, dst, vrf, root: routes.roots[&vrf], lengths: routes.table.lengths(vrf) });
    }
    let check =
        |answer: &Answer<Key>| assert_eq!(answer.result, routes.right(&answer.key), "{:x?}", answer.key);
    run(&mut bench, count, percent, |random| random.pick(&keys), check)
}

#[test]
fn a_look_up_each_clock_of_one_depth_and_nearly_of_many() {
    for length in [16, 24, 32] {
        let mut figures = of_one_length(false, length, Manner::Steady(40), 20_000, 100);
        figures.print(&format!("IPv4, all /{length}, memory of 40 clocks"));
        assert!(figures.rate() > 0.98, "{}", figures.rate());
        of_one_length(false, length, Manner::Steady(0), 1000, 5)
            .print(&format!("IPv4, all /{length}, unloaded, memory of 0 clocks"));
    }
    let mut figures = look_up(Manner::Steady(40), Family::V4, 20_000, 100);
    figures.print("IPv4, all lengths, memory of 40 clocks");
    assert!(figures.rate() > 0.8, "{}", figures.rate());
}

#[test]
fn a_length_each_clock() {
    let mut one = of_one_length(true, 64, Manner::Steady(40), 20_000, 100);
    one.print("IPv6, one length, memory of 40 clocks");
    assert!(one.rate() > 0.98, "{}", one.rate());
    of_one_length(true, 64, Manner::Steady(0), 1000, 5)
        .print("IPv6, one length, unloaded, memory of 0 clocks");
    let mut all = look_up(Manner::Steady(40), Family::V6, 5000, 100);
    all.print("IPv6, 16 lengths, memory of 40 clocks");
    assert!(all.rate() > 1.0 / 16.0, "{}", all.rate());
}

fn change(family: Family, count: usize) {
    let mut bench = bench(Manner::Random(60));
    let mut routes = Routes::new(&mut bench);
    for _ in 0..100 {
        let v6 = family.v6(&mut bench.random);
        let steps = routes.change(&mut bench.random, v6, 80);
        steps.iter().for_each(|step| bench.write(step));
    }
    let mut keys = Vec::new();
    for _ in 0..200 {
        let v6 = family.v6(&mut bench.random);
        keys.push(routes.key(&mut bench.random, v6));
    }
    let results = |routes: &Routes| -> Vec<u64> { keys.iter().map(|key| routes.right(key)).collect() };
    let lengths = |routes: &Routes| VRFS.map(|vrf| routes.table.lengths(vrf));
    let mut history = vec![(results(&routes), lengths(&routes))];
    let mut changes = Vec::new();
    while changes.len() < count {
        let v6 = family.v6(&mut bench.random);
        changes.push(routes.change(&mut bench.random, v6, 50));
        history.push((results(&routes), lengths(&routes)));
    }
    let place = |key: &Key| {
        let same = |other: &Key| (other.v6, other.dst, other.vrf) == (key.v6, key.dst, key.vrf);
        keys.iter().position(same).expect("one of them")
    };
    let pick = |random: &mut Random, version: usize| {
        let key = random.pick(&keys);
        let vrf = VRFS.iter().position(|&vrf| vrf == key.vrf).expect("one of them");
        Key { lengths: history[version].1[vrf], ..key }
    };
    let [answers, old] = update(&mut bench, &changes, pick, |answer, version| {
        answer.result == history[version].0[place(&answer.key)]
    });
    println!("{count} changes, {answers} look-ups, {old} of them older than the last change");
    assert!(old > 10);
}

#[test]
fn changes_are_seen_or_not_yet() {
    change(Family::V4, 150);
    change(Family::V6, 100);
    change(Family::Both, 100);
}
