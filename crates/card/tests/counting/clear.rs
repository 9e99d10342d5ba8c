//! The command that clears lines.

use card::registers::{Command, Table};
use model::generate::Rng;
use rtl::Commands;

/// A write: on chip or the memory, table, address or line and half, and whether it writes zeros.
type Write = (u8, u8, u32, bool);

/// Runs a command. Returns its writes.
fn run(
    top: &mut Commands,
    rng: &mut Rng,
    command: Command,
    table: Table,
    address: u32,
    word: u32,
) -> Vec<Write> {
    top.set_command(command as u8);
    top.set_to_table(table as u8);
    top.set_address(address);
    top.data_mut().set(0, 32, word.into());
    top.data_mut().set(32, 32, 77);
    top.set_start(true);
    top.clock();
    top.set_start(false);
    let (mut writes, mut owed) = (Vec::new(), 0);
    for _ in 0..10_000 {
        if top.done() {
            return writes;
        }
        let (ready, done) = (rng.percent(30), rng.percent(30));
        top.set_memory_ready(if ready { 0x1f } else { 0 });
        top.set_memory_done(if done { owed } else { 0 });
        top.eval();
        let zero = top.wr_data().words().iter().all(|word| *word == 0);
        if top.wr_valid() {
            writes.push((0, top.wr_table(), top.wr_address(), zero));
        }
        if done {
            owed = 0;
        }
        if ready && top.memory_valid() != 0 {
            owed = top.memory_valid();
            writes.push((owed, top.wr_table(), top.memory_line() << 1 | u32::from(top.memory_half()), zero));
        }
        top.clock();
    }
    panic!("not done");
}

const ON_CHIP: u32 = 16_384;

#[test]
fn each_line_of_the_range_is_written_once_with_zeros_and_no_other() {
    let mut rng = Rng::new(5);
    let mut top = Commands::new();
    top.reset(3);
    let tables =
        [Table::Flow, Table::Bridge, Table::Route, Table::Nexthop, Table::Port, Table::Vrf, Table::Label];
    // Among nexthops of which some are on chip, and among some that are all in memory.
    for (table, from) in tables
        .map(|table| (table, 100))
        .into_iter()
        .chain([(Table::Nexthop, ON_CHIP - 3), (Table::Nexthop, 1 << 19)])
    {
        for count in [0, 1, 2, 3, 65] {
            for way in [0, 1 << 31] {
                let first = from + if from == 100 { rng.below(1000) as u32 } else { 0 };
                let expected: Vec<Write> =
                    (first..first + count).flat_map(|at| writes_of(table, way, at)).collect();
                let way = if table == Table::Flow { way } else { 0 };
                assert_eq!(run(&mut top, &mut rng, Command::Clear, table, first | way, count), expected);
                let written = run(&mut top, &mut rng, Command::Write, table, first | way, count);
                let one = writes_of(table, way, first).len();
                assert_eq!((written.len(), written[0].3), (one, false), "a write has its data");
            }
        }
    }
}

/// Returns the writes that clear a line. In memory, a nexthop takes two: one for each half.
fn writes_of(table: Table, way: u32, at: u32) -> Vec<Write> {
    let number = table as u8;
    match table {
        Table::Flow => vec![(1 + (way >> 31) as u8, number, at, true)],
        Table::Bridge => vec![(4, number, at << 1, true)],
        Table::Route => vec![(8, number, at << 1, true)],
        Table::Nexthop if at >= ON_CHIP => {
            vec![(16, number, at << 1, true), (16, number, at << 1 | 1, true)]
        }
        _ => vec![(0, number, at, true)],
    }
}
