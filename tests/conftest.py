"""Fixtures of the end-to-end tests, and how they are distributed where several run at a time."""

import os
from collections import Counter

import pytest

from lab import Lab


# Marks of tests that take long.
BEGIN_FIRST = ("at_most", "takes_long")


@pytest.fixture
def lab():
    """Makes an empty lab, taken down after the test. A daemon that died, panicked or doesn't end in order fails the
    test."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_lab():
    """Makes a lab for all tests of a file, where setting it up takes long."""
    with Lab() as lab:
        yield lab


def pytest_configure(config):
    """Has durations written down where VIADUCT_DURATIONS names a file, by the process that hears of all tests, and
    the names of tests that failed, in the file next to it."""
    file = os.environ.get("VIADUCT_DURATIONS")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(file))


class Durations:
    """Appends a line to a file for each test that has ended: how many seconds it took with its fixtures, and its
    name."""

    def __init__(self, file):
        self.file = file
        self.seconds = Counter()
        self.failed = set()

    def pytest_runtest_logreport(self, report):
        """Adds up the three phases of a test, of which the last one ends it."""
        self.seconds[report.nodeid] += report.duration
        name = without_group(report.nodeid)
        if report.failed and name not in self.failed:
            self.failed.add(name)
            with open(f"{self.file}.failed", "a", encoding="utf-8") as lines:
                lines.write(f"tests/{name}\n")
        if report.when == "teardown":
            with open(self.file, "a", encoding="utf-8") as lines:
                lines.write(f"{self.seconds.pop(report.nodeid):.2f}\t{name}\n")


def without_group(name):
    """Cuts off what a worker adds to the name of a test: @ and the group."""
    at = name.rfind("@")
    return name[:at] if at > name.rfind("]") else name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Gives tests that share a lab to one worker (--dist loadgroup), by files unless their marks say otherwise, and
    those marked `at_most` to so many workers. All others go to whoever is free; what takes long begins first."""
    counts = Counter()
    for item in items:
        limit = item.get_closest_marker("at_most")
        if limit:
            most, kind = limit.args
            counts[kind] += 1
            item.add_marker(pytest.mark.xdist_group(f"{kind} {counts[kind] % most}"))
        elif "shared_lab" in item.fixturenames and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in BEGIN_FIRST))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Shows the ends of the daemons' logs, and what they dropped, with a test that failed."""
    report = (yield).get_result()
    lab = item.funcargs.get("lab") or item.funcargs.get("shared_lab")
    if call.when != "call" or not report.failed or lab is None:
        return
    for name, host in lab.hosts.items():
        if host.daemon is None:
            continue
        report.sections.append((f"viaductd of host {name}", host.daemon.describe(40)))
        if host.daemon.running():
            drops = host.call("dropstats", "--log", "10", check=False)
            report.sections.append((f"drops of host {name}", drops.stdout + drops.stderr))
