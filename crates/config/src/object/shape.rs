//! Shapers of a guest: rates over which its packets wait instead of being dropped.

use super::{Guest, GuestKind};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, describe};
use serde::Serialize;

/// Highest rate, megabits per second.
const MAX_MBPS: u32 = 100_000;

/// Shapers of a guest's port; at least one is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The rate of packets towards the guest.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub inward: Option<ShapeRate>,
    /// The rate of packets from the guest.
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    pub outward: Option<ShapeRate>,
}

/// The rate of a shaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ShapeRate {
    /// Megabits per second.
    pub mbps: u32,
}

impl ShapeRate {
    /// Returns the rate in bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.mbps as u64 * 1_000_000
    }
}

impl Value for Shape {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let before = r.problems();
        let shape = Self { inward: r.get("in"), outward: r.get("out") };
        if shape.inward.is_none() && shape.outward.is_none() && r.problems() == before {
            r.problem(None, "`shape` has neither `in` nor `out`, as in { in = { mbps = 500 } }");
        }
        r.finish();
        Some(shape)
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ in = {{ mbps = N }}, out = {{ mbps = N }} }}, found {}", describe(value)))
    }
}

impl Value for ShapeRate {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let mbps = r.require("mbps").map(Within::<1, MAX_MBPS>::wide);
        if r.get::<i128>("guaranteed_mbps").is_some() {
            let message =
                "guaranteed rates are not there yet: each guest has its own `mbps`, whatever others send";
            r.problem(Some("guaranteed_mbps"), message);
        }
        r.finish();
        Some(Self { mbps: mbps? })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ mbps = N }}, found {}", describe(value)))
    }
}

/// Checks that a guest with shapers has a port whose packets all pass them.
pub(super) fn check(guest: &Guest, r: &Reader<'_>) {
    if guest.shape.is_none() {
        return;
    }
    if guest.kind() == GuestKind::Rdma {
        r.problem(
            Some("shape"),
            "a guest of kind \"rdma\" has no port to shape; leave `shape` out, and limit it by `rate`",
        );
    } else if guest.verbs.is_some() {
        let message = "`shape` and `rdma` exclude each other: packets of a verbs device do not pass the shapers; limit \
                       the guest by `rate`, which counts both";
        r.problem(Some("shape"), message);
    }
}
