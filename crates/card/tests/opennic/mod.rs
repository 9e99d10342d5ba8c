//! The engine in OpenNIC's box: the same packets come out as from the engine alone (`tests/engine`), in the form the
//! shell expects; registers are reached from the shell's clock, and the shell's reset leaves no partial packet behind.
#![cfg(feature = "card-test")]

mod memory;
mod rates;
mod rounds;
mod shell;

use crate::host::talk::{self, Carrier as _};
use card::Card;
use card::registers::{Command, PuntMeta, command, identity};
use model::generate::{Rng, packet};
use rounds::{Counts, Rounds};
use shell::{Shell, WIRE};

#[test]
fn packets_come_out_as_of_the_engine_whatever_waits() {
    let mut all = Counts::default();
    // Rules of the second one drop packets.
    for seed in [0, 3] {
        let mut rng = Rng::new(seed);
        let mut rounds = Rounds::new(&mut rng);
        for _ in 0..60 {
            talk::converse(&mut rng, &mut rounds);
        }
        for _ in 0..40 {
            rounds.send(&packet(&mut rng, &rounds.host.tables));
        }
        // Without pauses, then with pauses on both sides.
        for stall in [0, 30, 80] {
            rounds.host.card().sim.stall = stall;
            rounds.rounds(&mut rng, 6);
        }
        all.add(rounds.counts);
    }
    println!("{all:#?}");
    assert!(all.forwarded * 20 > all.packets && all.punted.len() > 5 && all.dropped > 0, "{all:?}");
}

#[test]
fn what_the_host_decided_passes_as_it_is_to_guests_and_wires() {
    for stall in [0, 60] {
        let mut shell = Shell::new();
        shell.stall = stall;
        for (size, egress) in (60..400).zip([0, 1].into_iter().cycle()) {
            let bytes: Vec<u8> = (0..size).map(|k| (k * 7 + size) as u8).collect();
            let meta = PuntMeta { port: 300 + egress, size, egress: egress as u8, ..PuntMeta::default() };
            shell.send_raw(0, [&meta.encode()[..], &bytes].concat());
            let received = shell.wait(usize::from(egress));
            let port = if egress == 0 { meta.port } else { WIRE };
            assert_eq!((received.port, received.punt, received.bytes), (port, None, bytes));
        }
    }
}

#[test]
fn registers_are_written_and_read_once_each_across_the_clocks() {
    let mut shell = Shell::new();
    for k in 0..200_u32 {
        let value = k.wrapping_mul(0x9e37_79b9);
        shell.write32(identity::SCRATCH, value);
        assert_eq!(shell.read32(identity::SCRATCH), value);
    }
    // In the command block, where a duplicate write would count twice.
    let at = (shell.read32(identity::DIRECTORY + 4) & 0xffff) * 4096;
    for done in 1..100 {
        shell.write32(at + command::COMMAND, Command::Barrier as u32);
        while shell.read32(at + command::BUSY) != 0 {}
        assert_eq!(shell.read32(at + command::DONE), done);
    }
}

#[test]
fn a_reset_throws_the_rest_of_a_packet_away_and_waits_for_memory() {
    for beats in 0..6 {
        let mut shell = Shell::new();
        shell.write32(identity::SCRATCH, 7);
        // It enters up to beat `beats`, then the reset comes.
        let meta = PuntMeta { port: 5, size: 320, egress: 1, ..PuntMeta::default() };
        let long = [&meta.encode()[..], &[0xee; 320]].concat();
        shell.send_raw(0, long.clone());
        shell.send_raw(1, vec![0xee; 320]);
        for _ in 0..beats {
            shell.tick();
        }
        shell.reset(false);
        assert!(!shell.is_reset_done());
        shell.memory_ready();
        assert!(shell.is_reset_done());
        assert_eq!(shell.read32(identity::SCRATCH), 0, "the engine was reset");
        shell.forget();
        // The engine knows no interfaces now: the host's packet leaves unchanged, and the wire's goes to the host
        // unchanged.
        let bytes: Vec<u8> = (0..200).collect();
        let meta = PuntMeta { size: 100, ..meta };
        shell.send_raw(0, [&meta.encode()[..], &bytes[..100]].concat());
        assert_eq!(shell.wait_for(1, 100).bytes, bytes[..100]);
        shell.send_raw(1, bytes.clone());
        let received = shell.wait_for(0, 200);
        assert_eq!((received.port, received.bytes), (WIRE, bytes));
    }
}
