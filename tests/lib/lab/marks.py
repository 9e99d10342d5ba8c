"""Marks of tests of which a small machine bears only few at a time."""

import pytest

# Each has one or two, which are translated where there is no KVM.
machines = pytest.mark.at_most(2, "virtual machines")
# Each takes half a gigabyte.
switches = pytest.mark.at_most(4, "Open vSwitch")
# A program of DPDK's has a CPU for itself as long as it runs.
polls = pytest.mark.at_most(1, "pollers")


def at_night(*values, **named):
    """Makes a parameter of a test that the gate does without."""
    return pytest.param(*values, marks=pytest.mark.nightly, **named)
