//! `bridge_lookup` against the shadow of the bridge table.
use super::bench::{Answer, Bench, Figures, Manner, Unit, run, update};
use super::random::Random;
use super::secret;
use card::cuckoo::{Cuckoo, Entry};
use card::registers::Bridge;
use card::step::{Line, Step};
use rtl::BridgeUnitSim;

/// Binary logarithm of the number of lines, as in the top module.
const BITS: u32 = 8;

/// Network and MAC.
type Key = (u16, u64);

impl Unit for BridgeUnitSim {
    type Key = Key;
    const REQUESTERS: usize = 2;

    fn ask(&mut self, ask: Option<(u16, &Key)>) {
        self.set_s_valid(ask.is_some());
        if let Some((tag, &(vrf, mac))) = ask {
            self.set_s_tag(tag);
            self.set_s_vrf(vrf);
            self.set_s_mac(mac);
        }
    }

    fn ready(&self) -> bool {
        self.s_ready()
    }

    fn result(&self) -> Option<(u16, u64)> {
        self.m_valid().then(|| (self.m_tag(), self.m_result()))
    }

    fn request(&self, requester: usize) -> Option<(u32, u16)> {
        let line = self.req_line() >> (27 * requester) & 0x7ff_ffff;
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
            self.set_resp_context(others | u32::from(*context) << (10 * requester));
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

fn bench(manner: Manner) -> Bench<BridgeUnitSim> {
    let mut unit = BridgeUnitSim::new();
    unit.secret_mut().set_bytes(0, &secret());
    unit.set_s_valid(false);
    unit.set_resp_valid(0);
    unit.reset(4);
    Bench::new(unit, manner)
}

/// Returns the result's bits, as `bridge_result_t`.
fn result(entry: Option<&Bridge>) -> u64 {
    entry.map_or(0, |entry| {
        let fixed = u64::from(entry.fixed) << 53;
        1 << 54
            | fixed
            | u64::from(entry.nexthop) << 33
            | u64::from(entry.at_tunnel) << 32
            | u64::from(entry.at)
    })
}

fn entry((vrf, mac): Key, random: &mut Random) -> Bridge {
    let (nexthop, at) = (random.below(1 << 20), random.next() as u32);
    Bridge { mac, vrf, valid: true, fixed: random.chance(50), nexthop, at_tunnel: random.chance(50), at }
}

/// Makes similar keys: the same MACs in several networks.
fn key(random: &mut Random) -> Key {
    (random.pick(&[0, 1, 2, 4095]), 0x0200_0000_0000 | (u64::from(random.below(400)) * 0x1_0001))
}

fn find<'a>(table: &'a Cuckoo<Bridge>, &(vrf, mac): &Key) -> Option<&'a Bridge> {
    table.find(&Bridge { mac, vrf, ..Bridge::default() }.key())
}

/// Makes a table filled to `percent` of its 1024 entries, and writes it to memory.
fn filled(bench: &mut Bench<BridgeUnitSim>, percent: usize) -> Cuckoo<Bridge> {
    let mut table = Cuckoo::new(BITS, super::SECRET);
    while table.len() < 1024 * percent / 100 {
        let entry = entry(key(&mut bench.random), &mut bench.random);
        let Ok(steps) = table.insert(entry) else { break };
        steps.iter().for_each(|step| bench.write(step));
    }
    table
}

fn look_up(manner: Manner, count: usize, percent: u32) -> Figures {
    let mut bench = bench(manner);
    let table = filled(&mut bench, 70);
    let hits = std::cell::Cell::new(0);
    let check = |answer: &Answer<Key>| {
        let right = find(&table, &answer.key);
        assert_eq!(answer.result, result(right), "{:x?}: {right:x?}", answer.key);
        hits.set(hits.get() + usize::from(right.is_some()));
    };
    let figures = run(&mut bench, count, percent, key, check);
    // The table has 716 of 1600 MACs.
    assert!((count / 3..count * 3 / 5).contains(&hits.get()), "{} hits", hits.get());
    figures
}

#[test]
fn finds_what_the_shadow_has() {
    look_up(Manner::Random(200), 20_000, 70).print("bridge, random memory");
    look_up(Manner::Random(3), 20_000, 100).print("bridge, quick random memory");
}

#[test]
fn a_look_up_each_clock() {
    let mut full = look_up(Manner::Steady(40), 20_000, 100);
    full.print("bridge, memory of 40 clocks");
    assert!(full.rate() > 0.99, "{}", full.rate());
    look_up(Manner::Steady(0), 1000, 5).print("bridge, unloaded, memory of 0 clocks");
}

#[test]
fn changes_are_seen_or_not_yet() {
    let mut bench = bench(Manner::Random(60));
    // The table is nearly full, so that most changes move other entries.
    let mut table = filled(&mut bench, 88);
    let keys: Vec<Key> = (0..200).map(|_| key(&mut bench.random)).collect();
    let results =
        |table: &Cuckoo<Bridge>| -> Vec<u64> { keys.iter().map(|key| result(find(table, key))).collect() };
    let mut history = vec![results(&table)];
    let mut changes = Vec::new();
    while changes.len() < 1000 {
        let key = bench.random.pick(&keys);
        let steps = if bench.random.chance(45) {
            table.remove(&Bridge { mac: key.1, vrf: key.0, ..Bridge::default() }.key())
        } else {
            let entry = entry(key, &mut bench.random);
            let Ok(steps) = table.insert(entry) else { continue };
            steps
        };
        history.push(results(&table));
        changes.push(steps);
    }
    let moves = changes.iter().flatten().filter(|step| **step == Step::Barrier).count();
    let place = |key: &Key| keys.iter().position(|other| other == key).expect("one of them");
    let [answers, old] = update(
        &mut bench,
        &changes,
        |random, _| random.pick(&keys),
        |answer, version| answer.result == history[version][place(&answer.key)],
    );
    println!(
        "bridge: {} changes with {moves} moves, {answers} look-ups, {old} of them older than the last",
        changes.len()
    );
    assert!(moves > 100 && old > 10);
}
