"""A host: a namespace with a `viaductd` in it."""

import json
import os
import re
import signal
from pathlib import Path

from .shell import PATIENCE, Background, Failed, eventually, run

REPOSITORY = Path(__file__).resolve().parents[3]


def binaries():
    """Returns the directory of what was built for the tests; VIADUCT_BIN names another one."""
    default = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "checked"
    return Path(os.environ.get("VIADUCT_BIN", default))


def binary(name):
    """Returns the path of a built program."""
    path = binaries() / name
    if not path.exists():
        raise Failed(f"{path} is missing: run make test-binaries")
    return path


class Host:
    """One viaductd with its own namespace, run-dir and state-dir."""

    def __init__(self, namespace, directory: Path, config):
        self.namespace = namespace
        self.config = config
        self.directory = directory
        self.run_dir = directory / "run"
        self.file = directory / "host.toml"
        self.starts = 0
        self.options = []
        self.daemon = None
        directory.mkdir(parents=True, exist_ok=True)
        self.run_dir.mkdir(exist_ok=True)

    @property
    def name(self):
        return self.config.name

    def write(self, config=None):
        """Writes the configuration to its file."""
        self.config = config or self.config
        self.file.write_text(self.config.text())
        return self.file

    def _mount_windows(self):
        """Makes room in memory for windows, where guests have any."""
        windows = self.run_dir / "rdma/vm"
        if not any("window_mb" in keys for _, keys in self.config.tables) or windows.is_mount():
            return
        windows.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", "tmpfs", "-o", "mode=755", "windows", windows])

    def forget(self):
        """Removes what is not in its directory."""
        if (self.run_dir / "rdma/vm").is_mount():
            run(["umount", "--lazy", self.run_dir / "rdma/vm"])

    def launch(self, *options):
        """Starts a daemon and does not wait for it."""
        self.write()
        self._mount_windows()
        self.starts += 1
        log = self.directory / f"viaductd-{self.starts}.log"
        # VIADUCT_OLD: an earlier build, from which this one takes over.
        old = None if "--replace" in options else os.environ.get("VIADUCT_OLD")
        command = [old or binary("viaductd"), "--config", self.file, "--run-dir", self.run_dir]
        command += ["--state-dir", self.directory / "state", "--log", os.environ.get("VIADUCT_LOG", "info")]
        command += [*self.options, *options]
        # Both streams go to one file: so `ready` is found, and appears in its place among the messages.
        self.daemon = Background(self.namespace.words(command), log, env={**os.environ, "RUST_BACKTRACE": "1"})
        return self.daemon

    def start(self, timeout=PATIENCE, options=()):
        """Starts the daemon and waits for its line `ready`."""
        self.launch(*options)
        ready = lambda: "ready" in self.daemon.text().splitlines() or not self.daemon.running()
        try:
            eventually(ready, "the line 'ready'", timeout)
        except Failed as failed:
            raise Failed(f"{failed}\n{self.daemon.describe()}") from None
        if not self.daemon.running():
            raise Failed(f"viaductd ended with {self.daemon.process.returncode}\n{self.daemon.describe()}")
        return self

    def stop(self):
        """Ends the daemon as a user would, and fails unless it exits cleanly."""
        if self.daemon is None or self.daemon.process.returncode is not None:
            return
        if not self.daemon.running():
            raise Failed(f"viaductd died with {self.daemon.process.returncode}\n{self.daemon.describe(60)}")
        status = self.daemon.stop()
        if status != 0:
            raise Failed(f"exit status {status} on SIGTERM\n{self.daemon.describe(60)}")
        if "panicked at" in self.daemon.text():
            raise Failed(f"a panic\n{self.daemon.describe(60)}")

    def replace(self):
        """Has a new daemon take over. Returns how long packets waited, in milliseconds."""
        old = self.daemon
        self.start(options=["--replace"])
        eventually(lambda: not old.running(), "the end of the replaced daemon")
        if old.process.returncode != 0 or "panicked at" in old.text():
            raise Failed(f"exit status {old.process.returncode} of the replaced daemon\n{old.describe(60)}")
        return int(re.search(r"has taken over.* waited_us=(\d+)", self.daemon.text()).group(1)) / 1000

    def kill(self):
        """Ends the daemon as a crash would."""
        self.daemon.stop(signal.SIGKILL)

    def call(self, *words, check=True, stdin=None, timeout=PATIENCE):
        """Runs `viaduct` against this daemon and returns the CompletedProcess."""
        command = [binary("viaduct"), "--run-dir", self.run_dir, *words]
        try:
            return run(self.namespace.words(command), check=check, stdin=stdin, timeout=timeout)
        except Failed as failed:
            raise Failed(f"host {self.name}: {failed}") from None

    def viaduct(self, *words, **options):
        """Returns the parsed output of `viaduct --json WORDS`."""
        output = self.call("--json", *words, **options).stdout
        try:
            return json.loads(output)
        except json.JSONDecodeError as error:
            raise Failed(f"viaduct --json {' '.join(map(str, words))}: {error}\n{output[:400]}") from None

    def apply(self, config):
        """Makes the running host be what `config` says."""
        return self.call("apply", self.write(config))

    def background(self, *words, label="viaduct"):
        """Starts a `viaduct` command that keeps running (capture, top)."""
        command = [binary("viaduct"), "--run-dir", self.run_dir, *words]
        return Background(self.namespace.words(command), self.directory / f"{label}.log")

    def drops(self):
        """Counts packets dropped so far, by reason; only reasons that occurred."""
        return {row["reason"]: row["packets"] for row in self.viaduct("dropstats")["reasons"] if row["packets"]}

    def socket(self, guest):
        """Returns the vhost-user socket of a guest, where viaductd or the VMM listens."""
        return self.run_dir / self.config.entry("guest", guest).get("socket", f"{guest}.sock")
