"""Running programs, and waiting for their effects."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

# Seconds in which something must come. Only a test that fails waits so long, so the slowest machine has time.
PATIENCE = 120
# The longest time between two looks whether it has come.
LONGEST = 0.5


class Failed(Exception):
    """A command or an expectation failed; the text says which one, and what was seen."""


def run(command, *, check=True, timeout=PATIENCE, stdin=None):
    """Runs a command (list of words) to its end and returns its CompletedProcess, output as text."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired as late:
        output = ((late.stdout or b"") + (late.stderr or b"")).decode(errors="replace")
        raise Failed(f"no end after {timeout} s: {shlex.join(command)}\n{output}") from None
    if check and done.returncode != 0:
        raise Failed(f"exit status {done.returncode}: {shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done


def eventually(check, what, timeout=PATIENCE, interval=0.05):
    """Calls `check` until it returns something true, and returns that; fails after `timeout` seconds. Between two calls
    it waits for `interval` seconds at first, then for longer and longer: where all takes long, the checks are not to
    take the CPUs from what they wait for."""
    deadline = time.monotonic() + timeout
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise Failed(f"not within {timeout:g} s: {what}")
        time.sleep(interval)
        interval = min(1.2 * interval, max(interval, LONGEST))


class Background:
    """A program in the background, its output in a file."""

    def __init__(self, command, log: Path, **options):
        self.command = [str(word) for word in command]
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=options.pop("stdout", output), stderr=output, **options
            )

    def text(self):
        """Returns what it has written so far."""
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def wait_for(self, needle, timeout=PATIENCE):
        """Waits until the output holds `needle`."""

        try:
            eventually(lambda: needle in self.text() or not self.running(), f"'{needle}'", timeout)
        except Failed as late:
            raise Failed(f"{late}\n{self.describe()}") from None
        if needle not in self.text():
            raise Failed(f"ended ({self.process.returncode}) before '{needle}': {self.describe()}")

    @property
    def status(self):
        """Returns the exit status, once it has ended."""
        return self.process.returncode

    def describe(self, lines=30):
        """Returns the command and the end of its output, for messages."""
        tail = "\n".join(self.text().splitlines()[-lines:])
        return f"{shlex.join(self.command)}\n{tail}"

    def stop(self, how=signal.SIGTERM, timeout=PATIENCE):
        """Ends it and returns its exit status; kills it if it doesn't react."""
        if self.running():
            self.process.send_signal(how)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return None
        return self.process.returncode
