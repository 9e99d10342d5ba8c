//! The crossing between Rust and a model: values of every width, prints, and ends.
#![cfg(feature = "units")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rtl::Probe;

/// Returns the panic message of a probe that is told to do `deed`.
fn failure(deed: u8) -> String {
    let mut probe = Probe::new();
    probe.set_word(77);
    probe.set_flag(true);
    probe.clock();
    probe.set_deed(deed);
    let payload = catch_unwind(AssertUnwindSafe(|| probe.clock())).expect_err("a panic");
    *payload.downcast::<String>().expect("a message")
}

#[test]
fn ports_of_every_width_arrive_whole() {
    let mut probe = Probe::new();
    probe.set_flag(true);
    probe.set_short_word(0x1a5);
    probe.set_word(0x1_5a5a);
    probe.set_long_word(0xfe_dcba_9876);
    probe.pair_mut().set(0, 33, 0x1_2345_6789);
    probe.pair_mut().set(33, 33, 0x1_0000_0001);
    probe.clock();
    assert!(probe.flag_q());
    assert_eq!(probe.short_word_q(), 0x1a5);
    assert_eq!(probe.word_q(), 0x1_5a5a);
    assert_eq!(probe.long_word_q(), 0xfe_dcba_9876);
    assert_eq!((probe.pair_q().get(0, 33), probe.pair_q().get(33, 33)), (0x1_2345_6789, 0x1_0000_0001));
    assert_eq!(probe.mirror().words().last(), Some(&0b01), "bits above the width are zero");
}

#[test]
fn outputs_follow_inputs_without_a_clock_and_registers_do_not() {
    let mut probe = Probe::new();
    probe.pair_mut().set(0, 66, 5);
    probe.eval();
    assert_eq!(probe.mirror().get(0, 66), !5 & ((1 << 66) - 1));
    assert_eq!(probe.pair_q().get(0, 66), 0);
}

#[test]
fn reset_is_high_for_its_cycles_and_low_afterwards() {
    let mut probe = Probe::new();
    probe.set_flag(true);
    probe.reset(3);
    assert_eq!(probe.cycle(), 3);
    assert!(!probe.rst() && !probe.flag_q());
    probe.clock();
    assert!(probe.flag_q());
}

#[test]
#[should_panic(expected = "0x200 has more than the port's 9 bits")]
fn a_value_too_wide_is_refused() {
    Probe::new().set_short_word(0x200);
}

#[test]
fn failures_are_panics_that_say_where_and_why() {
    let assertion = failure(1);
    assert!(assertion.starts_with("probe failed in cycle 1: "), "{assertion}");
    assert!(assertion.contains("probe.sv:"), "{assertion}");
    assert!(assertion.contains("the flag is 1"), "{assertion}");
    assert!(failure(2).contains("fatal word 77"));
    let stop = failure(3);
    assert!(stop.contains("stopped at rtl/sim/probe.sv:"), "{stop}");
}

#[test]
fn finish_is_noted_and_a_print_is_no_failure() {
    let mut probe = Probe::new();
    probe.set_deed(5);
    probe.clock();
    assert!(!probe.finished());
    probe.set_deed(4);
    probe.clock();
    assert!(probe.finished());
}

#[test]
fn models_in_many_threads_do_not_disturb_each_other() {
    let probes = (0..8).map(|number| {
        let mut probe = Probe::new();
        thread::spawn(move || {
            for cycle in 0..1000 {
                let fails = number % 2 == 1 && cycle == 500;
                probe.set_word(number * 1000 + cycle);
                probe.set_flag(fails);
                probe.set_deed(1);
                let panicked = catch_unwind(AssertUnwindSafe(|| probe.clock())).is_err();
                assert_eq!(panicked, fails);
                if fails {
                    return number;
                }
                assert_eq!(probe.word_q(), number * 1000 + cycle);
            }
            number
        })
    });
    let numbers: Vec<_> = probes.collect::<Vec<_>>().into_iter().map(|probe| probe.join()).collect();
    assert_eq!(numbers.into_iter().filter_map(Result::ok).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
}
