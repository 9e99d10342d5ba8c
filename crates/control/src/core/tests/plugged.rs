//! Tests what is told of taps that are no longer in their container.

use super::*;
use crate::service::vif_entries;

#[test]
fn a_tap_that_is_no_longer_in_its_container_is_not_up() {
    let bench = start(&format!("{FILE}{VM2}"));
    let up = || {
        let entries = vif_entries(&bench.core.view(), None);
        entries.into_iter().filter(|entry| entry.up).map(|entry| entry.name).collect::<Vec<_>>()
    };
    let look = || bench.core.view().look_at_taps().into_iter().collect::<Vec<_>>();
    // Taps that nobody moves are up where they are.
    bench.log.set_elsewhere(&[]);
    assert!(look().is_empty() && up() == ["vm1", "vm2"]);
    bench.log.set_elsewhere(&["t1"]);
    assert_eq!((look(), up()), (vec!["vm1".to_owned()], vec!["vm1".to_owned(), "vm2".to_owned()]));
    // The container is gone, or the next daemon has a tap of its own.
    bench.log.set_elsewhere(&[]);
    assert_eq!((look(), up()), (vec!["vm1".to_owned()], vec!["vm2".to_owned()]));
    bench.log.set_elsewhere(&["t1"]);
    assert_eq!(up(), ["vm1", "vm2"]);
    bench.apply(&FILE.replace("vm1", "vm3").replace("t1", "t3"), false);
    assert!(look().is_empty());
}
