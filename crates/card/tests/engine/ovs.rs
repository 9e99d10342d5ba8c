//! Ports of an Open vSwitch: packets whose flows are on the card, and others that differ from them in one field.

use super::lockstep::Lockstep;
use crate::host::{ovs, talk::Carrier};
use card::registers::Punt;
use model::generate::Rng;

#[test]
fn packets_of_flows_of_an_open_vswitch() {
    let mut bench = Lockstep::new();
    for seed in 0..6 {
        let (mut rng, mut next) = (Rng::new(seed), 0);
        bench = bench.renewed();
        assert!(bench.host.apply(&ovs::ports(&mut rng)));
        for _ in 0..6 {
            for _ in 0..12 {
                let change = ovs::change(&mut rng, &bench.host.tables, &mut next);
                bench.host.apply_ovs(&[change]);
            }
            for _ in 0..80 {
                bench.send(&ovs::near(&mut rng));
            }
            let packets = bench.prepared();
            bench.round(&mut rng, &packets, 300);
        }
    }
    bench.ledger.check_all(bench.host.driver.commands());
    let counts = &bench.counts;
    println!("{counts:#?}");
    assert!(counts.tracked == counts.forwarded && counts.forwarded > 1000, "{counts:?}");
    assert!([Punt::FlowMiss, Punt::Vlan].iter().all(|punt| counts.punted.contains_key(punt)), "{counts:?}");
}
