"""Fixtures of the end-to-end tests."""

import pytest

from lab import Lab


@pytest.fixture
def lab():
    """An empty lab, taken down after the test. A daemon that died, panicked or doesn't end in order fails the test."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_lab():
    """A lab for all tests of a file, where setting it up takes long."""
    with Lab() as lab:
        yield lab


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the ends of the daemons' logs and what they dropped."""
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
