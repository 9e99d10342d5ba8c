//! Counters that wrap around, and the events that tell the host.

use model::generate::Rng;
use rtl::FlowCounters;

/// Numbers of flows, of bits of their counters, and of events to keep: as in `crates/rtl/build/tops.rs`.
const FLOWS: usize = 8;
const PACKETS: u32 = 7;
const BYTES: u32 = 14;

/// The host's counts of packets and bytes, and the true ones.
struct Host {
    top: FlowCounters,
    rng: Rng,
    last: [[u64; 2]; FLOWS],
    total: [[u64; 2]; FLOWS],
    counted: [[u64; 2]; FLOWS],
    /// Number of eighths that packets and bytes passed, and number of those that events reported.
    passed: [u64; 2],
    told: [u64; 2],
}

impl Host {
    fn new(seed: u64) -> Self {
        let mut top = FlowCounters::new();
        top.reset(3);
        let zeros = [[0; 2]; FLOWS];
        Self {
            top,
            rng: Rng::new(seed),
            last: zeros,
            total: zeros,
            counted: zeros,
            passed: [0; 2],
            told: [0; 2],
        }
    }

    /// Advances by a clock, with a packet or without.
    fn clock(&mut self, packet: bool) {
        let (number, size) = (self.rng.below(FLOWS), 64 + self.rng.below(120));
        self.top.set_valid(packet);
        self.top.set_number(number as u8);
        self.top.set_size(size as u16);
        if packet {
            let counts = self.counted[number].iter_mut().zip(&mut self.passed);
            for ((count, passed), (more, bits)) in counts.zip([(1, PACKETS), (size as u64, BYTES)]) {
                *passed += u64::from((*count + more) >> (bits - 3) != *count >> (bits - 3));
                *count += more;
            }
        }
        self.top.clock();
    }

    /// Reads a flow's counters while packets arrive. The pipe holds packets back for a clock.
    fn read(&mut self, number: usize, packets: bool) {
        self.top.set_rd_number(number as u8);
        self.clock(false);
        for _ in 0..2 {
            self.clock(packets);
        }
        let now = [u64::from(self.top.rd_packets()), u64::from(self.top.rd_bytes())];
        for (which, bits) in [PACKETS, BYTES].into_iter().enumerate() {
            let more = now[which].wrapping_sub(self.last[number][which]) & ((1 << bits) - 1);
            self.total[number][which] += more;
        }
        self.last[number] = now;
    }

    /// Takes an event. Returns its flow.
    fn take(&mut self, packets: bool) -> Option<usize> {
        self.top.eval();
        let number = self.top.event_valid().then(|| usize::from(self.top.event_number()))?;
        let which = self.top.event_which();
        assert_ne!(which, 0);
        self.told[0] += u64::from(which & 1);
        self.told[1] += u64::from(which >> 1);
        self.top.set_event_ready(true);
        self.clock(packets);
        self.top.set_event_ready(false);
        Some(number)
    }

    /// Ends the packets, and compares the host's final counts.
    fn end(&mut self) {
        for _ in 0..8 {
            self.clock(false);
        }
        for number in 0..FLOWS {
            self.read(number, false);
        }
    }
}

#[test]
fn a_host_that_reads_at_each_event_loses_no_count() {
    let mut host = Host::new(3);
    let mut events = 0;
    for _ in 0..20_000 {
        let packet = host.rng.percent(40);
        host.clock(packet);
        if let Some(number) = host.take(packet) {
            host.read(number, packet);
            events += 1;
        }
        assert!(!host.top.lost());
    }
    host.end();
    while host.take(false).is_some() {}
    assert_eq!(host.total, host.counted);
    assert_eq!(host.told, host.passed);
    let anew: u64 = host.counted.iter().map(|[packets, _]| packets >> PACKETS).sum();
    assert!(anew > 50 && events > 100, "{anew} times anew, {events} events");
}

#[test]
fn events_that_are_lost_are_said_to_be_until_the_host_has_heard() {
    let mut host = Host::new(4);
    // Events of 8 flows, each within an eighth of its counters: as many as fit, and then more.
    for packets in 0.. {
        if host.top.lost() {
            break;
        }
        assert!(packets < FLOWS << PACKETS, "{packets} packets without a word");
        host.clock(true);
    }
    host.top.set_clear_lost(true);
    host.clock(false);
    host.top.set_clear_lost(false);
    while let Some(number) = host.take(false) {
        host.read(number, false);
    }
    host.end();
    assert!(!host.top.lost());
    assert_eq!(host.total, host.counted);
}
