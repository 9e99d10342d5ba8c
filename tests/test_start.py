"""docs/start.md, run section by section: its commands, what it says they print, and the files that it shows.

What a test machine cannot give is substituted: network namespaces for the hosts `a`, `b` and `c`, a bridge of veth
pairs for the NIC `eth1` and its cable, and the directory of built binaries in the PATH for `make install`. Each host
has its own /run/netns, /run/viaduct and /var/lib/viaduct (a mount namespace), so that commands run word for word.

The README's first use is run but for the VM, which needs a disk image from the Internet and a user at its console.
"""

import os
import re
import subprocess

import pytest

from lab import Failed, binary, eventually
from lab.host import REPOSITORY

PAGE = (REPOSITORY / "docs/start.md").read_text()
README = (REPOSITORY / "README.md").read_text()
SECTIONS = {text.split("\n", 1)[0]: text for text in re.split(r"^## ", PAGE, flags=re.M)[1:]}
EXAMPLES = {file.name: file.read_text() for file in (REPOSITORY / "examples").glob("*.toml")}


def blocks(text, language):
    """The fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


class Step:
    """One command of the page and the lines that it is said to print."""

    def __init__(self, line):
        self.host, self.command = line.split("# ", 1)
        self.output = []

    def missing(self, printed):
        """The first expected line that is not among the printed ones, in order; `...` matches anything, spaces any."""
        lines = iter(" ".join(line.split()) for line in printed.splitlines())
        for expected in self.output:
            pattern = ".*".join(re.escape(part) for part in " ".join(expected.split()).split("..."))
            if not any(re.fullmatch(pattern, line) for line in lines):
                return expected
        return None


def steps(section):
    found = []
    for line in "".join(blocks(section, "console")).splitlines():
        if re.match(r"[a-z]# ", line):
            found.append(Step(line))
        else:
            found[-1].output.append(line.strip())
    return found


class Shell:
    """A root's shell on one of the page's hosts, at the top of the repository."""

    PRIVATE = ("/run/netns", "/run/viaduct", "/var/lib/viaduct")

    def __init__(self, lab, name):
        namespace = lab.plug(name, "eth1", mtu=1500)
        namespace.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
        self.log = lab.directory / f"shell-{name}.log"
        path = f"{binary('viaductd').parent}:{os.environ['PATH']}"
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(namespace.words(["unshare", "--mount", "bash"]), cwd=REPOSITORY, text=True,
                                            stdin=subprocess.PIPE, stdout=output, stderr=output,
                                            env={**os.environ, "PATH": path})
        for directory in self.PRIVATE:
            self.run(f"mkdir -p {directory} && mount -t tmpfs -o mode=755 tmpfs {directory}")

    def run(self, command, missing=lambda printed: None):
        """Runs the command, then waits for what it is said to print: a daemon goes on in the background."""
        begin = len(self.log.read_text(errors="replace"))
        self.process.stdin.write(f"{command}\necho \"exit status $?.\"\n")
        self.process.stdin.flush()
        printed = lambda: self.log.read_text(errors="replace")[begin:]
        status = lambda: re.search(r"exit status (\d+)\.", printed())
        try:
            eventually(lambda: status() and missing(printed()) is None, f"its end and its output: {command}", 60)
        except Failed as failed:
            raise Failed(f"{failed}\nmissing: {missing(printed())}\n{printed()}") from None
        if status()[1] != "0":
            raise Failed(f"{command}\n{printed()}")


@pytest.fixture(scope="module")
def shells(shared_lab):
    """The hosts, by name: they keep what earlier sections did."""
    return {name: Shell(shared_lab, name) for name in "abc"}


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if steps(text)])
def test_section(shells, title):
    for step in steps(SECTIONS[title]):
        shells[step.host].run(step.command, step.missing)


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if blocks(text, "toml")])
def test_what_a_section_shows_is_in_a_file_that_it_names(title):
    named = re.findall(r"examples/([\w-]+\.toml)", SECTIONS[title])
    for block in blocks(SECTIONS[title], "toml"):
        assert any(block in EXAMPLES[name] for name in named), block


def test_every_example_is_named():
    assert set(EXAMPLES) == set(re.findall(r"examples/([\w-]+\.toml)", PAGE + README))
    assert blocks(README, "toml") == [EXAMPLES["vm.toml"]]


def test_first_use(shared_lab):
    """All commands but the VM's, and those that never end."""
    text = README.split("## A first use")[1].split("\n## ")[0]
    commands = [line.removeprefix("    sudo ") for line in text.splitlines() if line.startswith("    sudo ")]
    shell = Shell(shared_lab, "first")
    ran = [command for command in commands if not re.search("qemu|capture", command)]
    assert ran[1].startswith("examples/namespace") and len(ran) >= 5, ran
    for command in ran:
        ready = lambda printed: None if "ready" in printed else "ready"
        shell.run(command.replace("target/release/", ""), ready if command.endswith("&") else lambda _: None)
    shell.run("ip netns exec c1 ping -c 1 10.1.1.254")
