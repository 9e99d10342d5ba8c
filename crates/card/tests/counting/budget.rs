//! Events in windows of time.

use model::generate::Rng;
use rtl::WindowBudget;
use std::collections::HashMap;

/// Binary logarithm of the clocks in a window, and how many numbers there are: as in `crates/rtl/build/tops.rs`.
const WINDOW: u32 = 5;
const NUMBERS: usize = 4;

#[test]
fn no_more_than_the_budget_passes_in_a_window() {
    let mut rng = Rng::new(1);
    let mut top = WindowBudget::new();
    top.reset(3);
    let mut counts: HashMap<usize, (u64, u32)> = HashMap::new();
    let mut judged: Option<usize> = None;
    let (mut passed, mut over) = (0, 0);
    let mut budget = 3;
    for _ in 0..200_000 {
        if rng.percent(1) {
            budget = rng.below(9) as u32;
        }
        let number = rng.below(NUMBERS);
        let (valid, step) = (rng.percent(60), rng.percent(80));
        top.set_budget(budget);
        top.set_number(number as u8);
        top.set_valid(valid);
        top.set_step(step);
        top.eval();
        if let Some(number) = judged {
            let window = top.cycle() >> WINDOW;
            let (last, count) = counts.entry(number).or_default();
            if *last != window {
                (*last, *count) = (window, 0);
            }
            let beyond = budget != 0 && *count >= budget;
            assert_eq!(top.over(), beyond, "clock {}", top.cycle());
            if step {
                *count += u32::from(!beyond);
                *(if beyond { &mut over } else { &mut passed }) += 1;
            }
        } else {
            assert!(!top.over());
        }
        top.clock();
        if step {
            judged = valid.then_some(number);
        }
    }
    assert!(passed > 10_000 && over > 10_000, "{passed} passed, {over} did not");
}
