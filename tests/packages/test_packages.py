"""The packages, in clean systems: `make package-test`. The .deb is installed, upgraded, removed and purged in a chroot
of each distribution; the image is read by skopeo and run.

systemd is not there (test_systemd.py has it): the test starts the daemon as the unit says, with its user and
capabilities, and stops it before the package goes, as the package's scripts do where systemd runs.
"""

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from lab.host import REPOSITORY
from lab.ovs import RESTART, START
from lab.page import Shell, steps
from lab.shell import Background, eventually, run

BUILT = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
PACKAGES = Path(os.environ.get("VIADUCT_PACKAGES", BUILT / "packages"))
# dpkg and lintian take minutes on a busy machine.
pytestmark = pytest.mark.timeout(600)
CHROOTS = Path(os.environ.get("VIADUCT_CHROOTS", REPOSITORY / ".cache/chroots"))
UNIT = "/lib/systemd/system/viaductd.service"
# Files that dpkg and other packages' scripts write, whatever the package.
NOT_OURS = re.compile(r"/(var/lib/dpkg|var/log|var/cache|var/lib/apt|var/lib/systemd|tmp|proc|dev|sys)(/|$)"
                      r"|/lib\.usr-is-merged$"
                      r"|/etc/(passwd|group|shadow|gshadow)-?$|/etc/\.pwd\.lock$|/var/lib/pam/")


class Chroot:
    """A clean system, whose changes are in memory."""

    def __init__(self, lab, distribution):
        self.name = distribution
        self.namespace = lab.namespace(distribution)
        self.root = lab.directory / distribution
        changes = lab.directory / f"{distribution}-changes"
        for directory in (self.root, changes):
            directory.mkdir()
        run(["mount", "-t", "tmpfs", "tmpfs", changes])
        lab.cleanup.callback(run, ["umount", "--lazy", changes], check=False)
        for directory in ("upper", "work"):
            (changes / directory).mkdir()
        layers = f"lowerdir={CHROOTS / distribution},upperdir={changes}/upper,workdir={changes}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", layers, self.root])
        lab.cleanup.callback(run, ["umount", "--lazy", self.root], check=False)
        for directory, kind in (("proc", "proc"), ("sys", "sysfs"), ("run", "tmpfs")):
            run(["mount", "-t", kind, kind, self.root / directory])
            lab.cleanup.callback(run, ["umount", "--lazy", self.root / directory], check=False)
        run(["mount", "--rbind", "/dev", self.root / "dev"])
        lab.cleanup.callback(run, ["umount", "--lazy", self.root / "dev"], check=False)

    def words(self, command):
        return self.namespace.words(["chroot", self.root, *command])

    def run(self, *command, check=True):
        environment = ["env", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        return run(self.words([*environment, *command]), check=check, timeout=240)

    def install(self, package):
        shutil.copy(package, self.root / "tmp")
        # apt installs it, which checks the dependencies: all are there, so that nothing is downloaded.
        return self.run("apt-get", "install", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold",
                        "-o", "APT::Sandbox::User=root", f"/tmp/{package.name}").stdout

    def files(self):
        """Returns all files of the system that may be a package's."""
        listed = run(["find", self.root, "-xdev", "-type", "f,l,d"]).stdout
        paths = {line.removeprefix(str(self.root)) for line in listed.splitlines()}
        return {path for path in paths if not NOT_OURS.search(path)}

    def unit(self, key):
        """Returns the values of a key of the unit, the last one split into words."""
        text = (self.root / UNIT.lstrip("/")).read_text()
        return re.findall(rf"^{key}=(.*)$", text, flags=re.M)[-1].split()

    def start(self, log):
        """Starts the daemon as the unit starts it; returns it when it is ready."""
        self.run(*self.unit("ExecStart"), "--check")
        for directory in (self.root / "run/viaduct", self.root / "var/lib/viaduct"):
            directory.mkdir(exist_ok=True)
        self.run("chown", "viaduct:viaduct", "/run/viaduct", "/var/lib/viaduct")
        capabilities = ",".join(name.lower().replace("cap_", "+") for name in self.unit("AmbientCapabilities"))
        user = ["setpriv", "--reuid=viaduct", "--regid=viaduct", "--clear-groups", f"--inh-caps=-all,{capabilities}",
                f"--ambient-caps=-all,{capabilities}", f"--bounding-set=-all,{capabilities}", "--no-new-privs"]
        daemon = Background(self.words([*user, *self.unit("ExecStart")]), log)
        daemon.wait_for("ready")
        return daemon

    def interfaces(self):
        return {link["ifname"] for link in json.loads(self.namespace.run(["ip", "-j", "link"]).stdout)}


def distributions():
    """Returns those whose chroots scripts/setup could make here."""
    return sorted(path.name for path in CHROOTS.iterdir() if (path / "etc/os-release").exists()
                  and "-" not in path.name)


def next_version(package, directory):
    """Makes the same package, a version later, whose host.toml is another."""
    unpacked = directory / "unpacked"
    run(["dpkg-deb", "--raw-extract", package, unpacked])
    control = unpacked / "DEBIAN/control"
    version = re.search(r"^Version: (.*)$", control.read_text(), flags=re.M)[1]
    control.write_text(control.read_text().replace(f"Version: {version}", f"Version: {version}+next"))
    example = unpacked / "etc/viaduct/host.toml"
    example.write_text("# of the next version\n" + example.read_text())
    later = directory / "viaduct_next.deb"
    run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", unpacked, later], timeout=120)
    return later


@pytest.fixture(scope="module")
def package():
    return next(PACKAGES.glob("viaduct_*.deb"))


@pytest.fixture(scope="module")
def guest_package():
    return next(PACKAGES.glob("viaduct-guest_*.deb"))


@pytest.fixture(scope="module")
def ovs_package():
    return next(PACKAGES.glob("viaduct-ovs_*.deb"))


@pytest.mark.parametrize("which", ["package", "guest_package", "ovs_package"])
def test_lintian_has_nothing_to_say(request, which):
    package = request.getfixturevalue(which)
    done = run(["lintian", "--allow-root", "--fail-on", "error,warning", package], check=False, timeout=500)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("distribution", distributions())
def test_install_upgrade_remove_purge(lab, package, distribution):
    chroot = Chroot(lab, distribution)
    clean, namespace_rules = chroot.files(), chroot.namespace.run(["ip", "rule"]).stdout
    chroot.install(package)
    assert "viaduct" in chroot.run("id", "-un", "viaduct").stdout
    for installed in ("usr/bin/viaduct", "usr/share/man/man8/viaductd.8.gz", 
                      "usr/share/man/man5/host.toml.5.gz", "etc/viaduct/host.toml",
                      "usr/share/bash-completion/completions/viaduct", UNIT.lstrip("/")):
        assert (chroot.root / installed).exists(), installed

    daemon = chroot.start(lab.directory / "viaductd.log")
    assert "user viaduct, no capabilities" in chroot.run("viaduct", "status").stdout
    chroot.run("viaduct", "guest", "add", "c1", "--network", "blue", "--kind", "tap", "--device", "c1")
    assert "c1" in chroot.interfaces()

    # An upgrade keeps the administrator's file and what the API added.
    example = chroot.root / "etc/viaduct/host.toml"
    example.write_text(example.read_text() + "# mine\n")
    chroot.install(next_version(package, lab.directory))
    assert example.read_text().endswith("# mine\n")
    assert daemon.stop() == 0, daemon.describe()
    daemon = chroot.start(lab.directory / "viaductd-next.log")
    assert "c1" in chroot.run("viaduct", "guest").stdout and "c1" in chroot.interfaces()
    assert daemon.stop(signal.SIGTERM) == 0, daemon.describe()

    chroot.run("dpkg", "--remove", "viaduct")
    assert chroot.interfaces() == {"lo"}
    assert chroot.namespace.run(["ip", "rule"]).stdout == namespace_rules
    assert example.exists() and not (chroot.root / "usr/bin/viaduct").exists()
    # Files that a plug-in leaves where a container was attached.
    (chroot.root / "var/lib/viaduct-containers/blue").mkdir(parents=True)
    chroot.run("dpkg", "--purge", "viaduct")
    left = chroot.files() - clean
    assert not left, sorted(left)
    assert not list((chroot.root / "run").glob("viaduct*"))


@pytest.mark.parametrize("distribution", distributions())
def test_programs_in_a_guest_find_our_libraries(lab, guest_package, distribution):
    chroot = Chroot(lab, distribution)
    clean = chroot.files()
    chroot.install(guest_package)
    assert chroot.run("getent", "group", "rdma").stdout
    for library in ("libibverbs.so.1", "librdmacm.so.1", "libviaduct-sockets.so.1"):
        path = f"/usr/lib/viaduct-guest/{library}"
        known = [line for line in chroot.run("ldconfig", "-p").stdout.splitlines() if line.split()[0] == library]
        assert known[0].endswith(f"=> {path}"), known
        assert "not found" not in chroot.run("ldd", path).stdout
    chroot.run("dpkg", "--purge", "viaduct-guest")
    assert "viaduct-guest" not in chroot.run("ldconfig", "-p").stdout
    left = chroot.files() - clean
    assert not left, sorted(left)


def test_open_vswitch_by_the_commands_of_its_page(lab, package, ovs_package):
    """The commands of docs/ovs.md work where Open vSwitch is installed and systemd does not run."""
    chroot = Chroot(lab, "bookworm-ovs")
    chroot.install(package)
    clean = chroot.files()
    shutil.copytree(REPOSITORY / "examples", chroot.root / "tmp/examples")
    (chroot.root / "tmp/target/packages").mkdir(parents=True)
    shutil.copy(ovs_package, chroot.root / "tmp/target/packages")
    programs = chroot.root / "tmp/programs"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\nset -e\n{RESTART}")
    (programs / "systemctl").chmod(0o755)
    shell = Shell(lab, chroot, (), ["/tmp/programs"])
    shell.run("cd /tmp")
    shell.run(START)
    shell.follow(steps((REPOSITORY / "docs/ovs.md").read_text()))
    driver, = (path for path in chroot.files() - clean if path.endswith("librte_net_viaduct.so"))
    chroot.run("dpkg", "--purge", "viaduct-ovs")
    assert not (chroot.root / driver.lstrip("/")).exists()


def test_the_archive_for_guests_has_what_their_package_has(guest_package):
    archive = run(["tar", "-tf", next(PACKAGES.glob("viaduct-guest_*.tar.gz"))]).stdout.split()
    packaged = run(["dpkg-deb", "-c", guest_package]).stdout.splitlines()
    names = lambda paths: {Path(path).name for path in paths if not path.endswith("/") and "/share/" not in path}
    assert names(archive) == names(line.split()[5] for line in packaged)


def test_the_scripts_stop_and_start_the_daemon_by_systemd(package, lab):
    """Where systemd runs, the scripts speak of our unit; how they speak is debhelper's."""
    run(["dpkg-deb", "--control", package, lab.directory / "control"])
    scripts = {name: (lab.directory / "control" / name).read_text() for name in ("postinst", "prerm")}
    assert "viaductd.service" in scripts["prerm"] and "stop" in scripts["prerm"]
    assert "deb-systemd-invoke start 'viaductd.service'" in scripts["postinst"]


def test_image(lab, package):
    archive = f"oci-archive:{PACKAGES}/viaduct-oci.tar"
    image = json.loads(run(["skopeo", "inspect", "--config", archive]).stdout)
    assert image["config"]["Entrypoint"] == ["/usr/bin/viaductd"]
    layout, bundle = lab.directory / "layout", lab.directory / "bundle"
    run(["skopeo", "copy", "--quiet", archive, f"oci:{layout}:viaduct"])
    run(["umoci", "unpack", "--rootless", "--image", f"{layout}:viaduct", bundle])
    # An engine does so with --privileged: its own network namespace, the image's files, its entry point and words.
    root, namespace = bundle / "rootfs", lab.namespace("image")
    for directory in ("dev", "proc"):
        (root / directory).mkdir(exist_ok=True)
        run(["mount", "--rbind", f"/{directory}", root / directory])
        lab.cleanup.callback(run, ["umount", "--lazy", root / directory], check=False)
    words = image["config"]["Entrypoint"] + image["config"]["Cmd"]
    daemon = Background(namespace.words(["chroot", root, *words]), lab.directory / "image.log")
    lab.cleanup.callback(daemon.stop)
    daemon.wait_for("ready")
    status = namespace.run(["chroot", root, "/usr/bin/viaduct", "status"]).stdout
    assert "user viaduct, no capabilities" in status, status
    assert daemon.stop() == 0, shlex.join(words)
    eventually(lambda: not daemon.running(), "the daemon's end")
