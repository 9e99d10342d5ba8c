//! Rates are at most what the parameters allow, and close to it.

use hbm::{Channel, Controller, Refresh, Timing};

/// Measures the reads of 32 bytes per microsecond: as many as the port accepts, at random among `lines`.
fn rate(timing: Timing, controller: Controller, lines: u64) -> f64 {
    const CLOCKS: u64 = 40_000;
    let mut channel = Channel::new(timing, controller);
    let (mut random, mut beats) = (1u64, 0u32);
    for clock in 0..CLOCKS {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let line = 64 * ((random >> 33) % lines);
        if channel.can_read() {
            assert_eq!(channel.read(clock as u8 % 64, line, 1), Ok(()));
        }
        beats += u32::from(channel.r().is_some());
        channel.accept_r();
        channel.tick();
    }
    f64::from(beats) / (CLOCKS as f64 * f64::from(controller.clock_ps) * 1e-6)
}

/// Returns the part of a microsecond without refreshes, in tCK.
fn usable(timing: &Timing) -> f64 {
    let Refresh::AllBank { rfc, refi } = timing.refresh else { panic!("all-bank refresh") };
    1e6 / f64::from(timing.tck_ps) * (1.0 - f64::from(rfc) / f64::from(refi))
}

#[test]
fn random_reads_are_bound_by_activates() {
    for timing in [Timing::hbm2(), Timing::conservative(), Timing::ddr4_2400()] {
        let wide = Controller { window: 64, ..Controller::default() };
        let activates = (4.0 / f64::from(timing.faw)).min(1.0 / f64::from(timing.rrd_s));
        let limit = usable(&timing) * activates;
        let reached = rate(timing, wide, 1 << 22);
        assert!(reached < limit && reached > 0.95 * limit, "{reached} of {limit}, {timing:?}");

        let narrow = rate(timing, Controller { window: 4, ..wide }, 1 << 22);
        let in_order = rate(timing, Controller { in_order: true, ..wide }, 1 << 22);
        assert!(in_order < narrow && narrow < reached, "{in_order}, {narrow}, {reached}");
    }
}

#[test]
fn one_line_is_bound_by_its_bank() {
    for timing in [Timing::hbm2(), Timing::ddr4_2400()] {
        let limit = usable(&timing) / f64::from(timing.rc);
        let reached = rate(timing, Controller::default(), 1);
        assert!(reached < limit * 1.01 && reached > 0.95 * limit, "{reached} of {limit}");
        let open = rate(timing, Controller { row_hits: 16, ..Controller::default() }, 1);
        assert!(open > 4.0 * reached, "{open} with rows left open, {reached} without");
    }
}
