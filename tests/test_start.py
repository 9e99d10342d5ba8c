"""docs/start.md, run section by section: its commands, what it says they print, and the files that it shows.

What a test machine cannot give is substituted: network namespaces for the hosts `a`, `b` and `c`, a bridge of veth
pairs for the NIC `eth1` and its cable, and the directory of built binaries in the PATH for `make install`. Each host
has its own /run/netns, /run/viaduct and /var/lib/viaduct (a mount namespace), so that commands run word for word.

The README's first use is run but for the VM, which needs a disk image from the Internet and a user at its console.
"""

import re

import pytest

from lab.host import REPOSITORY
from lab.page import Shell, blocks, steps

PAGE = (REPOSITORY / "docs/start.md").read_text()
README = (REPOSITORY / "README.md").read_text()
OVS = (REPOSITORY / "docs/ovs.md").read_text()
SECTIONS = {text.split("\n", 1)[0]: text for text in re.split(r"^## ", PAGE, flags=re.M)[1:]}
EXAMPLES = {file.name: file.read_text() for file in (REPOSITORY / "examples").glob("*.toml")}


def shell_on(lab, name):
    """Starts a shell on one of the page's hosts."""
    namespace = lab.plug(name, "eth1", mtu=1500)
    namespace.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
    return Shell(lab, namespace)


@pytest.fixture(scope="module")
def shells(shared_lab):
    """Starts the hosts, by name: they keep what earlier sections did."""
    return {name: shell_on(shared_lab, name) for name in "abc"}


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if steps(text)])
def test_section(shells, title):
    for step in steps(SECTIONS[title]):
        shells[step.host].follow([step])


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if blocks(text, "toml")])
def test_what_a_section_shows_is_in_a_file_that_it_names(title):
    named = re.findall(r"examples/([\w-]+\.toml)", SECTIONS[title])
    for block in blocks(SECTIONS[title], "toml"):
        assert any(block in EXAMPLES[name] for name in named), block


def test_every_example_is_named():
    assert set(EXAMPLES) == set(re.findall(r"examples/([\w-]+\.toml)", PAGE + README + OVS))
    assert blocks(README, "toml") == [EXAMPLES["vm.toml"]]


def test_first_use(shared_lab):
    """All commands work but the VM's, and those that never end."""
    text = README.split("## A first use")[1].split("\n## ")[0]
    commands = [line.removeprefix("    sudo ") for line in text.splitlines() if line.startswith("    sudo ")]
    shell = shell_on(shared_lab, "first")
    ran = [command for command in commands if not re.search("qemu|capture", command)]
    assert ran[2] == "examples/namespace c1" and len(ran) >= 6, ran
    for command in ran:
        ready = lambda printed: None if "ready" in printed else "ready"
        shell.run(command.replace("target/release/", ""), ready if command.endswith("&") else lambda _: None)
    shell.run("ip netns exec c1 ping -c 1 10.1.1.254")
