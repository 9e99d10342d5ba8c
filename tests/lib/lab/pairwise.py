"""Few of many combinations, in which every pair of values occurs."""

import itertools
import re

import pytest


def options(value):
    """Splits a command line into the program and its options, without how often it does what it does (-n)."""
    return [part for part in re.split(r"\s+(?=-)", value) if not part.startswith("-n ")]


def pairwise(*axes, parts=options, always=(), marks=lambda *case: [], strength=2):
    """Returns the product of the axes as parameters for pytest; those that the gate does without are marked `nightly`.

    The gate keeps each value, each pair of parts that occurs in the product, and the combinations of `always`. `parts`
    says what a value is made of, so that a pair may be two options of one command line, or an option and a value of
    another axis. `marks` says what other marks a combination has. With a strength of 1 there are no pairs: the gate
    keeps each value and each part.
    """
    cases = list(itertools.product(*axes))
    pairs = {case: _pairs(case, parts, strength) for case in cases}
    chosen = {tuple(case) for case in always}
    missing = set().union(*pairs.values()).difference(*(pairs[case] for case in chosen))
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        chosen.add(best)
        missing -= pairs[best]
    nightly = lambda case: [] if case in chosen else [pytest.mark.nightly]
    return [pytest.param(*case, marks=[*marks(*case), *nightly(case)]) for case in cases]


def _pairs(case, parts, strength):
    """Returns the values of a combination, and each `strength` of their parts."""
    found = sorted({(axis, part) for axis, value in enumerate(case) for part in parts(value)})
    return {*enumerate(case), *itertools.combinations(found, strength)}
