"""Child processes that never outlive the benchmark."""

import os
import signal
import subprocess
import time
from pathlib import Path


class Failed(Exception):
    """A program of the benchmark did not do what it was told."""


def run(*command, check=True, **kwargs):
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command], text=True, capture_output=True, check=False, timeout=120, **kwargs
    )
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


class Child:
    """A program in the background, with its output in a file."""

    def __init__(self, *command, log, stdin=None, stdout=None):
        self.name = Path(str(command[0])).name
        self.log = Path(log)
        with self.log.open("w") as output:
            # It gets no Ctrl-C, because it is stopped in order, and it is killed if this process is.
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
                stdin=stdin or subprocess.DEVNULL,
                stdout=stdout or output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self.process.pid

    def output(self):
        """Returns a summary of its output: the first or the last lines show an error."""
        text = self.log.read_text().strip()
        return text if len(text) < 1500 else f"{text[:700]}\n...\n{text[-700:]}"

    def require_alive(self):
        """Raises `Failed` with the end of its log if it has ended."""
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with status {self.process.returncode}: {self.output()}")

    def wait_until(self, condition, what, seconds=30):
        """Waits until `condition` returns something, and returns that. Fails if the child ends."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            self.require_alive()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: no {what} after {seconds} s: {self.output()}")
            time.sleep(0.02)
        return found

    def pause(self):
        """Stops it until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def make_real_time(self, *names):
        """Gives the threads whose names start with one of these real-time priority; the polling thread of every device
        has the same."""
        found = False
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(names):
                os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(10))
                found = True
        if not found:
            raise Failed(f"{self.name} has no thread {' or '.join(names)}")

    def stop(self):
        """Ends it, by force if necessary."""
        if self.process.poll() is None:
            self.process.terminate()
            self.resume()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
