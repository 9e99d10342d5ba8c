"""Fixtures of the end-to-end tests."""

import pytest

from lab import Lab


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Returns where tests run on several workers (--dist loadgroup), each file is one worker's; tests marked `apart` go
    one by one to those that are free at the end."""
    is_apart = lambda item: item.get_closest_marker("apart") is not None
    for item in items:
        if not is_apart(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=is_apart)


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
