//! Operators read about drop reasons in docs/debug.md and by `viaduct dropstats --explain`: both say the same.

use model::DropReason;

#[test]
fn the_documentation_has_the_table_of_reasons() {
    let table = DropReason::table();
    let is_there = include_str!("../../../docs/debug.md").contains(&table);
    assert!(is_there, "docs/debug.md lacks this table, or has another one:\n{table}");
}

#[test]
fn advice_is_a_sentence() {
    for reason in DropReason::ALL {
        let advice = reason.advice();
        assert!(advice.ends_with('.') && !advice.contains(['|', '\n']), "{reason}: {advice}");
    }
}
