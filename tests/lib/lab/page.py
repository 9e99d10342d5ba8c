"""Pages of docs/ that are run: their commands, what they say these print, and the files that they show."""

import os
import re
import subprocess

from .host import REPOSITORY, binary
from .shell import Failed, eventually


def blocks(text, language):
    """Returns the fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


class Step:
    """One command of a page and the lines that it is said to print."""

    def __init__(self, line):
        self.host, self.command = line.split("# ", 1)
        self.output = []

    def missing(self, printed):
        """Returns the first expected line that is not among the printed ones, in order; `...` matches anything, spaces
        any."""
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
        elif found[-1].command.endswith("\\"):
            found[-1].command += f"\n{line}"
        else:
            found[-1].output.append(line.strip())
    return found


class Shell:
    """A root's shell in a namespace, at the top of the repository, with directories to itself. It looks for programs in
    `path` first, by default where the built ones are."""

    PRIVATE = ("/run/netns", "/run/viaduct", "/var/lib/viaduct")

    def __init__(self, lab, namespace, private=PRIVATE, path=None):
        self.log = lab.directory / f"shell-{namespace.name}.log"
        first = [binary("viaductd").parent] if path is None else path
        path = os.pathsep.join([*map(str, first), os.environ["PATH"]])
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(namespace.words(["unshare", "--mount", "bash"]), cwd=REPOSITORY, text=True,
                                            stdin=subprocess.PIPE, stdout=output, stderr=output,
                                            env={**os.environ, "PATH": path})
        for directory in private:
            self.run(f"mkdir -p {directory} && mount -t tmpfs -o mode=755 tmpfs {directory}")

    def follow(self, steps):
        """Runs the commands of a page."""
        for step in steps:
            self.run(step.command, step.missing)

    def run(self, command, missing=lambda printed: None):
        """Runs the command, then waits for what it is said to print: a daemon goes on in the background."""
        begin = len(self.log.read_text(errors="replace"))
        self.process.stdin.write(f"{command}\necho \"exit status $?.\"\n")
        self.process.stdin.flush()
        printed = lambda: self.log.read_text(errors="replace")[begin:]
        status = lambda: re.search(r"exit status (\d+)\.", printed())
        try:
            eventually(lambda: status() and missing(printed()) is None, f"its end and its output: {command}")
        except Failed as failed:
            raise Failed(f"{failed}\nmissing: {missing(printed())}\n{printed()}") from None
        if status()[1] != "0":
            raise Failed(f"{command}\n{printed()}")
