//! The driver's accesses to the card's memory, step by step.
use crate::registers::Table;
use std::collections::HashMap;

/// Bytes of a line, the most that one write changes. A reader sees all of a write or nothing.
pub const LINE: usize = 32;

pub type Line = [u8; LINE];

/// A step of a change, from a table's shadow. If the steps are done in order, look-ups give the old or the new result
/// at every moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a line.
    Write { table: Table, address: u32, data: Line },
    /// Write a flow to the stash, which is on chip and accepts both lines of an IPv6 flow at once ([`Table::Stash`]).
    Stash {
        /// Number of the place in the stash.
        number: u32,
        /// New contents, in the form of a bucket.
        lines: [Line; 2],
    },
    /// Wait until every earlier look-up has ended ([`crate::registers::Command::Barrier`]).
    Barrier,
}

/// Merges the steps of several changes so that they share barriers: each step that must follow a barrier still does,
/// and writes to one line keep the order of the changes.
#[must_use]
pub fn together(changes: impl IntoIterator<Item = Vec<Step>>) -> Vec<Step> {
    // The writes between barriers, and the last such interval in which each line was written.
    let mut phases: Vec<Vec<Step>> = vec![Vec::new()];
    let mut written: HashMap<(u8, u32), usize> = HashMap::new();
    for steps in changes {
        let line = |step: &Step| match step {
            Step::Write { table, address, .. } => Some((*table as u8, *address)),
            Step::Stash { number, .. } => Some((Table::Stash as u8, *number)),
            Step::Barrier => None,
        };
        let of_change: Vec<_> = steps.split(|step| *step == Step::Barrier).collect();
        let behind = |(phase, steps): (usize, &&[Step])| {
            let last = steps.iter().filter_map(|step| written.get(&line(step)?)).max();
            last.map_or(0, |last| last.saturating_sub(phase))
        };
        let first = of_change.iter().enumerate().map(behind).max().unwrap_or(0);
        for (phase, steps) in (first..).zip(of_change) {
            if phases.len() <= phase {
                phases.push(Vec::new());
            }
            written.extend(steps.iter().filter_map(line).map(|line| (line, phase)));
            phases[phase].extend_from_slice(steps);
        }
    }
    phases.join(&Step::Barrier)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(address: u32, byte: u8) -> Step {
        Step::Write { table: Table::Flow, address, data: [byte; LINE] }
    }

    #[test]
    fn changes_of_other_lines_share_a_barrier() {
        let moves = [(1, 2), (3, 4)].map(|(to, from)| vec![write(to, 1), Step::Barrier, write(from, 0)]);
        let expected = [write(1, 1), write(3, 1), Step::Barrier, write(2, 0), write(4, 0)];
        assert_eq!(together(moves), expected);
        assert_eq!(together([vec![write(1, 1)], vec![write(2, 1)]]), [write(1, 1), write(2, 1)]);
    }

    #[test]
    fn what_is_written_to_the_stash_keeps_its_order_too() {
        let stash = |byte| Step::Stash { number: 1, lines: [[byte; LINE]; 2] };
        let home = vec![write(1, 1), Step::Barrier, stash(0)];
        let expected = [write(1, 1), Step::Barrier, stash(0), stash(2)];
        assert_eq!(together([home, vec![stash(2)]]), expected);
    }

    #[test]
    fn what_goes_where_something_left_comes_behind_the_barrier_too() {
        let moved = vec![write(1, 1), Step::Barrier, write(2, 0)];
        let expected = [write(1, 1), Step::Barrier, write(2, 0), write(2, 2)];
        assert_eq!(together([moved.clone(), vec![write(2, 2)]]), expected);
        let onward = vec![write(2, 2), Step::Barrier, write(5, 0)];
        let expected = [write(1, 1), Step::Barrier, write(2, 0), write(2, 2), Step::Barrier, write(5, 0)];
        assert_eq!(together([moved, onward]), expected);
    }
}
