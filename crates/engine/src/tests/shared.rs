//! Flows behind an outside address that guests share.

use super::harness::{Host, Output, only};
use mem::{Accepts, Offload};
use model::vectors::{Step, load};
use model::{DropReason, VifId, text};

const TABLES: &str = "
network blue vrf 1 gateway 10.1.1.254/24
network public vrf 9 gateway 203.0.113.254/24
guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 policy
guest out in public mac 02:00:00:00:09:01 address 203.0.113.1
route blue 0.0.0.0/0 > network public
snat blue = public 203.0.113.5 ports 64
case tables
in vm1 eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 203.0.113.1 / udp 1 > 2
";
const VM: VifId = VifId(1);
const OUT: VifId = VifId(2);
/// The first port of the guest outside.
const FIRST: u16 = 17_408;

fn host() -> Host {
    let case = load(TABLES).unwrap().remove(0);
    let Some(Step::Apply(changes)) = case.steps.first() else { panic!("tables") };
    Host::new(changes, &[], Accepts::default(), 700)
}

fn out(port: u16, length: usize) -> Vec<u8> {
    let ip = "ip4 10.1.1.1 > 203.0.113.1";
    let text =
        format!("eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / {ip} / udp {port} > 53 / payload {length}");
    text::parse(&text).unwrap()
}

fn back(port: u16) -> Vec<u8> {
    let ip = "ip4 203.0.113.1 > 203.0.113.5";
    text::parse(&format!("eth 02:00:00:00:09:01 > 00:00:5e:00:01:00 / {ip} / udp 53 > {port}")).unwrap()
}

/// Returns the source and the destination port of the only packet that came out, which must do so by this port.
fn ports(output: &Output, by: VifId) -> [u16; 2] {
    let (port, (frame, _)) = only(output);
    assert_eq!(port, by);
    [34, 36].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]))
}

#[test]
fn cached_flows_have_their_own_ports_and_share_their_actions() {
    let mut host = host();
    let plain = |frame| (frame, Offload::default());
    for round in 0..4 {
        for n in 0..64 {
            let hits = host.hits();
            let sent = host.run(VM, [plain(out(1024 + n, 600))]);
            assert_eq!(ports(&sent, OUT), [FIRST + n, 53], "round {round}");
            let answered = host.run(OUT, [plain(back(FIRST + n))]);
            assert_eq!(ports(&answered, VM), [53, 1024 + n], "round {round}");
            assert!(round < 2 || host.hits() == hits + 2, "round {round}, flow {n}");
        }
    }
    assert_eq!(host.core.actions.used(), 2, "one for each direction");
    // The 65th has no port, until the connections end.
    host.run(VM, [plain(out(5000, 8))]);
    assert_eq!(host.drops()[&DropReason::SnatPorts], 1);
    host.settle();
    host.advance(1000);
    let sent = host.run(VM, [plain(out(5000, 8))]);
    assert!(!sent.is_empty(), "{:?}", host.drops());
    assert_eq!(ports(&sent, OUT), [FIRST + 5000 % 64, 53]);
}
