"""docs/ovs.md: its commands, word for word, and what it says they print.

What they change is private to the test: a network namespace, and layers over /etc, /usr and /var that are gone
afterwards. Two programs are replaced: `apt`, since Open vSwitch is installed here and the driver's package is not
built, and `systemctl`, since systemd does not run. They do by hand what packages and units do. With the package the
page is run by packages/test_packages.py.
"""

import re

import pytest

from lab.host import REPOSITORY, binary
from lab.marks import switches
from lab.ovs import RESTART, START
from lab.page import Shell, blocks, steps

PAGE = (REPOSITORY / "docs/ovs.md").read_text()
APT = f"""case "$*" in "install -y openvswitch-switch-dpdk "*/viaduct-ovs_*) ;; *) exit 2 ;; esac
{START}
{REPOSITORY}/dist/install-ovs
"""


@pytest.fixture
def shell(lab):
    programs = lab.directory / "programs"
    programs.mkdir()
    for name, text in {"apt": APT, "systemctl": RESTART}.items():
        (programs / name).write_text(f"#!/bin/sh\nset -e\n{text}")
        (programs / name).chmod(0o755)
    private = ("/run/netns", "/run/viaduct", "/run/openvswitch", "/run/dpdk", lab.directory / "changes")
    shell = Shell(lab, lab.namespace("ovs"), private, [programs, binary("viaductd").parent])
    for name in ("etc", "usr", "var"):
        changes = lab.directory / "changes" / name
        layers = f"lowerdir=/{name},upperdir={changes}/upper,workdir={changes}/work"
        shell.run(f"mkdir -p {changes}/upper {changes}/work && mount -t overlay -o {layers} overlay /{name}")
    shell.run("rm -rf /var/lib/viaduct")
    return shell


@switches
def test_the_commands_of_the_page(shell):
    commands = steps(PAGE)
    assert [step.command.split()[0] for step in commands[:2]] == ["apt", "update-alternatives"]
    # The page promises that the tenth one makes flows.
    assert "ping" in commands[9].command
    shell.follow(commands)


def test_what_the_page_shows_is_in_the_example():
    example = (REPOSITORY / "examples/ovs.toml").read_text()
    assert blocks(PAGE, "toml") and all(block in example for block in blocks(PAGE, "toml"))
    assert "examples/ovs.toml" in PAGE and re.search(r"viaductd --config examples/ovs.toml &$", PAGE, flags=re.M)
