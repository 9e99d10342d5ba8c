"""Container runtimes on a host: calling plug-ins as they do, and running them."""

import json
from pathlib import Path

from .host import REPOSITORY, binary
from .shell import Failed, run

TOOLS = REPOSITORY / ".cache/tools/bin"
EXAMPLES = REPOSITORY / "examples/containers"


def tool(name):
    """Returns the path of a program that `scripts/setup test` builds."""
    if not (TOOLS / name).exists():
        raise Failed(f"{TOOLS / name} is missing: run scripts/setup test")
    return TOOLS / name


class Refused(Exception):
    """A plug-in's error, as it prints it."""

    def __init__(self, done):
        self.error = json.loads(done.stdout)
        super().__init__(f"{done.stdout}{done.stderr}")


class Runtime:
    """What a container runtime has on a host: directories of its own, plug-ins, network namespaces of containers.

    What it runs sees the host's run-dir and its own state where they are on a real host (a mount namespace).
    """

    def __init__(self, lab, host):
        self.lab, self.host = lab, host
        self.directory = host.directory / "runtime"
        self.plugins = self._directory("plugins")
        for name, program in (("viaduct-cni", binary("viaduct-cni")), ("host-local", tool("host-local"))):
            (self.plugins / name).symlink_to(program)
        self.mounts = {
            host.run_dir: "/run/viaduct",
            self._directory("cni"): "/var/lib/cni",
            self._directory("records"): "/var/lib/viaduct-containers",
            self._directory("net.d"): "/etc/cni/net.d",
        }
        self.path = f"{self.plugins}:/usr/lib/cni"

    def _directory(self, name):
        directory = self.directory / name
        directory.mkdir(parents=True)
        return directory

    def words(self, command):
        """Returns the command as it has to be called from outside."""
        mounts = [f"mkdir -p {there} && mount --bind {here} {there}" for here, there in self.mounts.items()]
        script = " && ".join([*mounts, 'exec "$@"'])
        namespace = f"/run/netns/{self.host.namespace.name}"
        return ["nsenter", f"--net={namespace}", "unshare", "--mount", "sh", "-c", script, "sh", *command]

    def run(self, command, **options):
        return run(self.words(command), **options)

    def call(self, command, config, container="c1", ifname="eth0", wrapper=(), **environment):
        """Calls the CNI plug-in; returns its result, and raises `Refused` with its error."""
        variables = {"CNI_COMMAND": command, "CNI_PATH": self.path, "CNI_CONTAINERID": container, "CNI_IFNAME": ifname}
        if command not in ("GC", "STATUS", "VERSION") and "CNI_NETNS" not in environment:
            variables["CNI_NETNS"] = self.netns(container)
        variables.update(environment)
        settings = [f"{name}={value}" for name, value in variables.items()]
        text = config if isinstance(config, str) else json.dumps(config)
        done = self.run(["env", *settings, *wrapper, self.plugins / "viaduct-cni"], stdin=text, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout) if done.stdout else None
        if not done.stdout:
            raise Failed(f"exit status {done.returncode}: {done.stderr}")
        raise Refused(done)

    def cnitool(self, action, network, container, check=True):
        """Runs the CNI project's own tool."""
        command = ["env", f"CNI_PATH={self.path}", "NETCONFPATH=/etc/cni/net.d", tool("cnitool"), action, network]
        return self.run([*command, self.netns(container)], check=check)

    def netns(self, container):
        """Returns the path of the container's network namespace, which is made when it is first asked for, or that
        path."""
        if container.startswith("/"):
            return container
        return f"/run/netns/{self.lab.namespace(container).name}"

    def configure(self, name, text):
        """Writes a file of /etc/cni/net.d."""
        (self.directory / "net.d" / name).write_text(text if isinstance(text, str) else json.dumps(text))

    def guests(self):
        """Returns the names of the daemon's guests."""
        return {guest["name"] for guest in self.host.viaduct("guest")}

    def leftovers(self):
        """Returns everything that is left of attachments: guests, records, reservations of addresses, devices. A
        host-local that dies before it writes whose a reservation is leaves an empty one, which nobody can tell from
        those of others."""
        files = [path for path in (self.directory / "records").rglob("*") if path.is_file()]
        files += [path for path in (self.directory / "cni").rglob("*") if path.is_file() and path.stat().st_size]
        kept = ("lock", "last_reserved_ip.")
        devices = json.loads(self.host.namespace.run(["ip", "-json", "link"]).stdout)
        return [
            *self.guests(),
            *(str(path.relative_to(self.directory)) for path in files if not path.name.startswith(kept)),
            *(device["ifname"] for device in devices if device["ifname"].startswith("vd")),
        ]


def example(name):
    """Returns the text of an example."""
    return (EXAMPLES / name).read_text()


def rootfs(directory: Path):
    """Makes a root file system with nothing but busybox."""
    (directory / "bin").mkdir(parents=True)
    run(["cp", "/usr/bin/busybox", directory / "bin"])
    return directory
