//! The conformance vectors, through the card.

use crate::{Counts, Host};
use model::vectors::{Case, Step, load};
use std::path::PathBuf;

#[test]
fn the_card_does_what_the_vectors_say_or_leaves_it_to_the_host() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/vectors");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    files.sort();
    let mut counts = Counts::default();
    for file in files {
        for case in load(&std::fs::read_to_string(&file).unwrap()).unwrap() {
            println!("{}: {}", file.display(), case.name);
            run(&case, &mut counts);
        }
    }
    println!("{counts:#?}");
    assert!(counts.forwarded > 100 && counts.tracked > 0, "{counts:?}");
}

fn run(case: &Case, counts: &mut Counts) {
    let mut host = Host::empty();
    for step in &case.steps {
        match step {
            Step::Apply(changes) => host.apply(changes),
            Step::Learn(effects) => host.effects(effects),
            // Connections end: the executor tells the card of it.
            Step::Wait(_) => return,
            Step::Packet(packet) if packet.gso_size.is_none() => {
                let packet = model::generate::Packet {
                    ingress: packet.ingress,
                    frame: packet.frame.clone(),
                    gso_size: None,
                };
                // As it comes first, and once the host has seen it.
                host.once(&packet, counts);
                host.send(&packet, counts);
                host.once(&packet, counts);
            }
            // Guests of a card are offered no segmentation.
            Step::Packet(_) => {}
        }
    }
}
