//! The distances that the memory demands between commands, and the sources of the figures.
//!
//! Sources, by the names used below:
//! - *DRAMsim3*: `configs/HBM2_8Gb_x128.ini` and `configs/DDR4_8Gb_x8_2400.ini` of umd-memsys/DRAMsim3 2981759.
//! - *ramulator*: presets `HBM2_2000Mbps` and `DDR4_2400R` (8 Gb, x8) of CMU-SAFARI/ramulator2 c5b1c3a
//!   (`python/ramulator/dram/hbm2.py`, `ddr4.py`), which quote JESD235D and JESD79-4.
//! - *DRAMSys*: `HBM2.json` of tukl-msd/DRAMSys 2107966.

/// Number of banks of a pseudo channel, and of a rank of DDR4 with x8 devices.
pub const BANKS: usize = 16;
/// Number of bank groups. Bank `b` is in group `b % GROUPS`.
pub const GROUPS: usize = 4;

/// The way to refresh the memory. Refreshes are sent when due, never postponed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// All banks at once.
    AllBank {
        /// tRFC: from the refresh to the next activate, tCK.
        rfc: u32,
        /// tREFI: from refresh to refresh, tCK.
        refi: u32,
    },
    /// One bank after the other.
    PerBank {
        /// tRFCsb: from the refresh to the bank's next activate, tCK.
        rfc: u32,
        /// tREFIsb: from one bank's refresh to the next bank's, tCK.
        refi: u32,
        /// tRREFD: from the refresh to an activate of a different bank, tCK.
        rrefd: u32,
    },
}

impl Refresh {
    /// HBM2, one bank after the other: tRFCsb 160 ns, tREFIsb 3900 ns / 16, tRREFD 8 ns (ramulator; DRAMSys 96/244/8).
    pub const HBM2_PER_BANK: Self = Self::PerBank { rfc: 160, refi: 244, rrefd: 8 };
    /// The values of [`Self::HBM2_PER_BANK`] in periods of 1.111 ns, for [`Timing::hbm2_1800`].
    pub const HBM2_1800_PER_BANK: Self = Self::PerBank { rfc: 145, refi: 219, rrefd: 8 };
}

/// Least distances between commands, in clock periods of the memory (tCK). `_s` holds between bank groups, `_l` within
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// tCK, picoseconds.
    pub tck_ps: u32,
    /// CL: from a read command to its first data, tCK.
    pub cl: u32,
    /// CWL: from a write command to its first data, tCK.
    pub cwl: u32,
    /// tRCDRD: from an activate to a read, tCK.
    pub rcd_rd: u32,
    /// tRCDWR: from an activate to a write, tCK.
    pub rcd_wr: u32,
    /// tRP: from a precharge to an activate or refresh of the bank, tCK.
    pub rp: u32,
    /// tRAS: from an activate to a precharge, tCK.
    pub ras: u32,
    /// tRC: from activate to activate of one bank, tCK.
    pub rc: u32,
    /// tCCD_S: from column command to column command of the same direction, tCK.
    pub ccd_s: u32,
    /// tCCD_L: from column command to column command of the same direction within a bank group, tCK.
    pub ccd_l: u32,
    /// tRRD_S: from activate to activate, tCK.
    pub rrd_s: u32,
    /// tRRD_L: from activate to activate within a bank group, tCK.
    pub rrd_l: u32,
    /// tFAW: the span in which four activates may start, tCK.
    pub faw: u32,
    /// tRTP: from a read to a precharge, tCK.
    pub rtp: u32,
    /// tWR: from a write's last data to a precharge, tCK.
    pub wr: u32,
    /// tWTR_S: from a write's last data to a read, tCK.
    pub wtr_s: u32,
    /// tWTR_L: from a write's last data to a read within a bank group, tCK.
    pub wtr_l: u32,
    /// Time between a read's last data and a write's first, while the data bus changes its direction, tCK. 2 in
    /// ramulator.
    pub bus_turn: u32,
    /// Time that a burst occupies the data bus, tCK: half the burst length.
    pub burst: u32,
    /// Bytes in a burst: 32 or 64.
    pub burst_bytes: u32,
    /// Bytes in a row of one bank.
    pub row_bytes: u32,
    /// Cycles of the command bus that an activate takes, tCK.
    pub act_cycles: u32,
    /// Whether row and column commands share one bus, as in DDR4. HBM has one of each.
    pub shared_bus: bool,
    pub refresh: Refresh,
}

impl Timing {
    /// Returns HBM2 at 2 Gb/s per pin: a pseudo channel of 64 bits, bursts of 4. From ramulator unless stated
    /// otherwise.
    pub const fn hbm2() -> Self {
        Self {
            tck_ps: 1000,
            cl: 14,     // DRAMsim3 too; DRAMSys 17
            cwl: 5,     // DRAMsim3 4, DRAMSys 7
            rcd_rd: 14, // DRAMsim3 too; DRAMSys 12
            rcd_wr: 12, // DRAMsim3 14, DRAMSys 6
            rp: 14,     // all three
            ras: 34,    // DRAMsim3 too; DRAMSys 28
            rc: 48,     // tRAS + tRP
            ccd_s: 2,   // all three (DRAMsim3 has 1 for 128 bits)
            ccd_l: 4,   // DRAMsim3 has 2 for 128 bits; DRAMSys 3
            rrd_s: 4,   // all three
            rrd_l: 6,   // DRAMsim3, DRAMSys; ramulator 4
            faw: 16,    // DRAMSys; ramulator 15, "vendor-specific"
            rtp: 5,     // DRAMSys too; DRAMsim3 4 and 6
            wr: 16,     // DRAMsim3 too; DRAMSys 14
            wtr_s: 6,   // DRAMsim3 too; DRAMSys 4
            wtr_l: 8,   // DRAMsim3 too; DRAMSys 9
            bus_turn: 2,
            burst: 2,
            burst_bytes: 32,
            row_bytes: 1024,
            act_cycles: 2,
            shared_bus: false,
            refresh: Refresh::AllBank { rfc: 350, refi: 3900 }, // DRAMsim3 260, DRAMSys 220
        }
    }

    /// Returns HBM2 at 1.8 Gb/s per pin, the most that AMD's controller for UltraScale+ supports (PG276): the ns of
    /// [`Self::hbm2`] in periods of 1.111 ns, rounded up. Values that are specified in periods stay, and tFAW stays 4
    /// tRRD_S.
    pub const fn hbm2_1800() -> Self {
        Self {
            tck_ps: 1111,
            cl: 13,
            rcd_rd: 13,
            rcd_wr: 11,
            rp: 13,
            ras: 31,
            rc: 44,
            wr: 15,
            refresh: Refresh::AllBank { rfc: 316, refi: 3510 },
            ..Self::hbm2()
        }
    }

    /// Returns HBM2 with the slower value of [`Self::hbm2`] and DRAMsim3 where the sources disagree. The tFAW of 30 ns
    /// matters most.
    pub const fn conservative() -> Self {
        Self { rcd_wr: 14, rtp: 6, faw: 30, ..Self::hbm2() }
    }

    /// Returns DDR4-2400, one rank of x8 devices of 8 Gb: 64 bits, bursts of 8. From ramulator unless stated otherwise.
    pub const fn ddr4_2400() -> Self {
        Self {
            tck_ps: 833,
            cl: 16,     // DRAMsim3 too
            cwl: 12,    // DRAMsim3 16
            rcd_rd: 16, // DRAMsim3 too
            rcd_wr: 16, // DRAMsim3 too
            rp: 16,     // DRAMsim3 too
            ras: 39,    // DRAMsim3 too
            rc: 55,     // tRAS + tRP
            ccd_s: 4,   // DRAMsim3 too
            ccd_l: 6,   // DRAMsim3 too
            rrd_s: 4,   // DRAMsim3 too
            rrd_l: 6,   // DRAMsim3 too
            faw: 26,    // DRAMsim3 too: 21 ns
            rtp: 9,
            wr: 18,   // DRAMsim3 19
            wtr_s: 3, // DRAMsim3 too
            wtr_l: 9, // DRAMsim3 too
            bus_turn: 2,
            burst: 4,
            burst_bytes: 64,
            row_bytes: 8192,
            act_cycles: 1,
            shared_bus: true,
            refresh: Refresh::AllBank { rfc: 420, refi: 9364 }, // DRAMsim3: 350 ns, 7.8 us; ramulator 360 ns
        }
    }
}
