"""rdma-core's own tests of the verbs library: those of `pyverbs/passing.txt` pass, and no other one does or fails."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from lab.host import REPOSITORY, binary
from lab.shell import run
from lab.topology import SEATS, host_config, verbs

# Minutes; its programs give up after times of their own.
pytestmark = [pytest.mark.alone, pytest.mark.nightly]

HERE = Path(__file__).parent / "pyverbs"
# Where packages' documentation is not installed, scripts/setup unpacks it.
SOURCES = [root / "usr/share/doc/rdma-core/tests" for root in (Path("/"), REPOSITORY / ".cache/rdma-core")]
# The version that the lists are about.
VERSION = "44"
OTHER_DEVICES = ("test_mlx5_", "test_efa")
# Pass where there are huge pages.
EITHER = {
    "tests.test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic",
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_traffic",
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_user_addr_traffic",
}


def passing():
    """Returns the names of the tests that pass."""
    lines = (HERE / "passing.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def explained():
    """Returns the names of the tests that the documentation explains to be skipped."""
    text = (REPOSITORY / "docs/verbs-conformance.md").read_text()
    return {f"tests.test_{name}" for name in re.findall(r"^- `(\w+\.\w+\.\w+)`$", text, re.MULTILINE)}


def unpack(directory):
    """Unpacks the tests, ready to run; returns the names of their modules."""
    source = next(path for path in SOURCES if path.is_dir())
    tests = directory / "tests"
    tests.mkdir()
    for file in source.iterdir():
        if file.name.startswith(OTHER_DEVICES):
            continue
        if file.suffix == ".gz":
            (tests / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        else:
            shutil.copy(file, tests)
    return sorted(file.stem for file in tests.glob("test_*.py"))


def is_version():
    installed = run(["dpkg-query", "--show", "--showformat", "${Version}", "python3-pyverbs"]).stdout
    return installed.startswith(f"{VERSION}.")


@pytest.mark.parametrize("trust", [None, "mine"], ids=["copied", "shared"])
def test_rdma_core(lab, trust):
    keys = {"rdma_trust": trust} if trust else {}
    host = lab.host(host_config("a", {name: verbs(**keys) for name in ("a1", "a2")}, wire=False))
    directory = lab.directory / "pyverbs"
    directory.mkdir()
    modules = unpack(directory)
    library = binary("verbs/libibverbs.so.1").parent
    settings = {"LD_LIBRARY_PATH": library, "VIADUCT_RDMA": host.run_dir / "rdma/a1", "PYTHONDONTWRITEBYTECODE": 1}
    command = ["env", "-C", directory, *(f"{name}={value}" for name, value in settings.items()), "/usr/bin/python3"]
    output = directory / "outcomes.json"
    run([*command, HERE / "run.py", output, "viaduct0", SEATS["a1"].address, *modules], timeout=900)

    outcomes = json.loads(output.read_text())
    failed = {test: why for test, (outcome, why) in outcomes.items() if outcome == "failed"}
    assert not failed, "\n".join(f"{test}\n{why}" for test, why in failed.items())
    passed = {test for test, (outcome, _) in outcomes.items() if outcome == "ok"} - EITHER
    expected, known = passing(), passing() | explained() | EITHER
    if is_version():
        assert outcomes.keys() == known, sorted(outcomes.keys() ^ known)
    # Other versions lack some, and have others of which nothing was said.
    missing = {test: outcomes[test] for test in (expected & outcomes.keys()) - passed}
    assert not missing, missing
    unexpected = (passed & known) - expected
    assert not unexpected, f"pass, and are not in {HERE}/passing.txt: {sorted(unexpected)}"
