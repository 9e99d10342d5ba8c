//! Opening sound and broken cards, and a mapped BAR for which a thread simulates the card.

use card::expect::{Memory, Sizes};
use card::registers::{Table, command, identity};
use card::{BarError, Card, CardError, Commands, MmapBar};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

struct Odd {
    card: Memory,
    register: u32,
    value: u32,
}

impl Card for Odd {
    fn read32(&mut self, offset: u32) -> u32 {
        if offset == self.register { self.value } else { self.card.read32(offset) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.card.write32(offset, value);
    }
}

fn odd(register: u32, value: u32) -> Odd {
    Odd { card: Memory::new(Sizes::default()), register, value }
}

#[test]
fn cards_that_the_driver_does_not_know_are_refused() {
    let refused = |register, value| Commands::open(odd(register, value)).err().unwrap();
    assert_eq!(refused(identity::MAGIC, u32::MAX), CardError::Magic(u32::MAX));
    assert_eq!(refused(identity::REVISION, 99), CardError::Revision { card: 99, driver: 1 });
    assert!(matches!(refused(identity::SCRATCH, 0), CardError::Scratch { read: 0, .. }));
    assert_eq!(refused(identity::BLOCKS, 17), CardError::Directory(17));
    assert_eq!(refused(identity::BLOCKS, 2), CardError::Missing("engine"));
    let (unknown, newer) = (0x0901_0004, 0x0202_0001);
    assert_eq!(refused(identity::DIRECTORY + 4, unknown), CardError::Block { block: 9, version: 1 });
    assert_eq!(refused(identity::DIRECTORY + 4, newer), CardError::Block { block: 2, version: 2 });
    assert!(matches!(refused(identity::FLOW_BUCKETS, 40), CardError::Size { value: 40, .. }));
    assert!(Commands::open(Memory::new(Sizes::default())).is_ok());
}

#[test]
fn a_card_that_hangs_is_given_up() {
    let mut commands = Commands::open(odd(0x1000 + command::DONE, 7)).unwrap().with_polls(50);
    let hangs = CardError::Hangs { command: "barrier", polls: 50 };
    assert_eq!(commands.barrier(), Err(hangs));
}

/// Offset of the registers, as in OpenNIC's BAR.
const WINDOW: u64 = 0x10_0000;

/// Makes a file with four blocks after the window's beginning: the registers of a card, with the values of `card`.
fn bar(dir: &Path, card: &mut Memory) -> std::path::PathBuf {
    let path = dir.join("resource2");
    let mut file = std::fs::File::create(&path).unwrap();
    file.seek(SeekFrom::Start(WINDOW)).unwrap();
    for offset in (0..0x4000).step_by(4) {
        file.write_all(&card.read32(offset).to_le_bytes()).unwrap();
    }
    path
}

/// Executes the commands of the command block until `end` is set.
fn play(path: &Path, card: &mut Memory, end: &AtomicBool) {
    let mut bar = MmapBar::open(path, WINDOW).unwrap();
    while !end.load(Ordering::Acquire) {
        let code = bar.read32(0x1000 + command::COMMAND);
        if code == 0 {
            std::thread::yield_now();
            continue;
        }
        bar.write32(0x1000 + command::COMMAND, 0);
        for register in (command::DATA..=command::ADDRESS).step_by(4) {
            card.write32(0x1000 + register, bar.read32(0x1000 + register));
        }
        card.write32(0x1000 + command::COMMAND, code);
        bar.write32(0x1000 + command::DONE, card.read32(0x1000 + command::DONE));
    }
}

#[test]
fn lines_reach_a_card_behind_a_bar() {
    let dir = tempfile::tempdir().unwrap();
    let mut card = Memory::new(Sizes::default());
    let path = bar(dir.path(), &mut card);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| play(&path, &mut card, &end));
        let mut commands =
            Commands::open(MmapBar::open(&path, WINDOW).unwrap()).unwrap().with_polls(u32::MAX);
        for number in 0..200_u32 {
            let line = std::array::from_fn::<u8, 64, _>(|at| (number as usize * 7 + at) as u8);
            commands.write(Table::Nexthop, number, &line).unwrap();
            commands.write(Table::Bridge, number, &line[..32]).unwrap();
        }
        commands.barrier().unwrap();
        end.store(true, Ordering::Release);
    });
    assert_eq!(card.commands(), (401, 1));
    for number in 0..200_u32 {
        let line = std::array::from_fn::<u8, 64, _>(|at| (number as usize * 7 + at) as u8);
        assert_eq!(card.line::<64>(Table::Nexthop, number), line);
        assert_eq!(card.line::<32>(Table::Bridge, number), line[..32]);
    }
}

#[test]
fn what_lies_outside_a_bar_is_as_nobody_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = bar(dir.path(), &mut Memory::new(Sizes::default()));
    let mut bar = MmapBar::open(&path, WINDOW).unwrap();
    assert_eq!(bar.read32(0x3ffc), 0);
    for outside in [0x4000, 0x3ffe, 1, u32::MAX - 3] {
        bar.write32(outside, 5);
        assert_eq!(bar.read32(outside), u32::MAX, "{outside:#x}");
    }
    assert_eq!(bar.read32(identity::MAGIC), 0x5644_4354);
}

#[test]
fn files_that_are_no_bars_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let short = dir.path().join("short");
    std::fs::write(&short, [0; 4096]).unwrap();
    assert!(matches!(MmapBar::open(&short, 0), Err(BarError::TooShort { len: 4096, .. })));
    assert!(matches!(MmapBar::open(&short, WINDOW), Err(BarError::TooShort { len: 0, .. })));
    assert!(matches!(MmapBar::open(&short, 4096), Err(BarError::Window(4096))));
    assert!(matches!(MmapBar::open(&dir.path().join("none"), 0), Err(BarError::Io { .. })));
}
