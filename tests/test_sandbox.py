"""After its start the daemon owns next to nothing, and everything still works."""

import os
import select
import signal
import socket
import stat
import urllib.request
from pathlib import Path

import pytest

from lab import PATIENCE, Background, binary, eventually, meet
from lab.marks import polls
from lab.topology import SEATS, host_config, tap, vhost

A1, A2 = SEATS["a1"], SEATS["a2"]
METRICS = "127.0.0.1:9101"


def facts(pid):
    """Reads what the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def hexadecimal(words):
    return int(words[0], 16)


@pytest.fixture
def host(lab):
    """Starts a host with a guest of each kind, a wire and metrics."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1", role="client")}, metrics=METRICS)
    config.entry("guest", "a1")["rdma"] = "a1"
    return lab.host(config)


def test_the_daemon_owns_little_and_says_so(host):
    status = host.viaduct("status")
    sandbox = status["sandbox"]
    daemon, helper = facts(status["pid"]), facts(sandbox["helper"])
    for process in daemon, helper:
        assert (process["NoNewPrivs"], process["Seccomp"]) == (["1"], ["2"])
        assert hexadecimal(process["CapBnd"]) == 0
        # Where no other user is mapped, as in a user namespace of one that is not root, it can't become another.
        assert "0" not in process["Uid"] + process["Gid"] and process["Groups"] == []
    assert [hexadecimal(daemon[kind]) for kind in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0, 0, 0, 0]
    # Neither CAP_SYS_ADMIN nor CAP_SYS_PTRACE nor CAP_SETUID.
    assert hexadecimal(helper["CapPrm"]) & (1 << 21 | 1 << 19 | 1 << 7) == 0
    assert sandbox["enabled"] and sandbox["no_new_privs"] and sandbox["seccomp"]
    assert (sandbox["capabilities"], sandbox["bounding"]) == ([], [])
    assert str(sandbox["uid"]) == daemon["Uid"][0]
    # Each thread is filtered, those of guests and programs, too.
    for thread in Path(f"/proc/{status['pid']}/task").iterdir():
        assert "Seccomp:\t2" in (thread / "status").read_text(), thread
    assert sandbox["missing"] == []
    assert f"helper {sandbox['helper']}" in host.call("status").stdout


def test_its_files_are_those_of_its_start(host):
    """The daemon holds its store, its lock, what it leaves to the next one, sockets, what metrics say of its own
    process; no other directory, nothing of others."""
    pid = host.viaduct("status")["pid"]
    names = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    files = [name for name in names if name.startswith("/") and not name.startswith(("/dev/", "/memfd:"))]
    ours = {
        host.run_dir / "viaductd.lock",
        host.run_dir / "rings",
        host.run_dir / "windows",
        host.run_dir / "carryover.0",
        host.run_dir / "carryover.1",
        host.directory / "state/store.0",
        host.directory / "state/store.1",
    }
    own = {Path(f"/proc/{pid}/fd"), Path(f"/proc/{pid}/stat")}
    assert set(map(Path, files)) - ours - own <= {host.daemon.log}, files


@polls
def test_guests_of_every_kind_come_at_any_time(lab, host):
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    # A VMM listens, in a directory that only its user may enter.
    lab.testpmd(host, "b1")
    a1.expect_ping(SEATS["b1"].address)
    # A guest and its verbs device are added; sockets belong to whom they are for.
    config = host.config.copy()
    mine = {"mac": "02:00:00:00:01:07", "addresses": ["10.1.1.7"], "network": "blue"}
    config.add(
        "guest", name="late", **mine, **vhost("late", owner="daemon:daemon", socket_mode="0640")
    )
    config.entry("guest", "a2")["rdma"] = "a2"
    host.apply(config)
    made = (host.run_dir / "late.sock").stat()
    assert stat.S_IMODE(made.st_mode) == 0o640 and made.st_uid == 1
    host.apply(config.without("guest", name="late"))
    assert not (host.run_dir / "late.sock").exists()
    meet(*(lab.verbs(host, guest) for guest in ("a1", "a2")), "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c")


def test_a_tap_that_was_deleted_comes_back(lab, host):
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    for _ in range(2):
        a1.namespace.ip("link del", a1.device)
        eventually(lambda: a1.device in host.namespace.run(["ip", "link"]).stdout, "the tap in its first namespace")
        a1.attach()
        a1.expect_ping(A2.address)
    vif = next(vif for vif in host.viaduct("vif", "list") if vif["name"] == "a1")
    assert vif["up"] and vif["mac"] == A1.mac, "the state of a tap that is elsewhere is known"


def test_a_wire_that_went_comes_back(lab, host):
    namespace = host.namespace
    up = lambda: next(vif["up"] for vif in host.viaduct("vif", "list") if vif["name"] == "up0")
    eventually(up, "the wire")
    namespace.ip("link del up0")
    eventually(lambda: not up(), "the wire's fall")
    lab.plug("a")
    eventually(up, "the wire's return")


def test_metrics_are_served(host):
    with host.namespace.entered():
        assert b"viaduct_info" in urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=PATIENCE).read()


def test_the_daemon_ends_with_its_helper(host):
    os.kill(host.viaduct("status")["sandbox"]["helper"], signal.SIGKILL)
    assert host.daemon.process.wait(PATIENCE) == 1
    assert "the helper process has ended" in host.daemon.text()
    host.daemon = None


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_helper_ends_with_its_daemon(host, how):
    helper = os.pidfd_open(host.viaduct("status")["sandbox"]["helper"])
    getattr(host, how)()
    assert select.select([helper], [], [], PATIENCE)[0], "the helper lives on"
    os.close(helper)
    left = {path.name for path in host.run_dir.iterdir() if path.is_socket()}
    assert left == ({"viaduct.sock", "replace.sock", "ovs.sock"} if how == "kill" else set())
    # Files that a dead daemon left are replaced.
    host.start()
    host.call("status")


def test_signals_of_the_terminal_end_the_daemon_in_order(host):
    helper = host.viaduct("status")["sandbox"]["helper"]
    for signal_number in signal.SIGINT, signal.SIGTERM:
        os.kill(helper, signal_number)
    host.call("status")
    host.daemon.process.send_signal(signal.SIGINT)
    assert host.daemon.process.wait(PATIENCE) == 0


def test_without_a_sandbox(lab, host):
    host.stop()
    host.options = ["--no-sandbox"]
    host.start()
    status = host.viaduct("status")
    assert not status["sandbox"]["enabled"] and "helper" not in {k for k, v in status["sandbox"].items() if v}
    assert facts(status["pid"])["Seccomp"] == ["0"]
    assert "--no-sandbox" in host.call("status").stdout
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)


def test_started_by_a_service_manager(lab):
    """The daemon starts as the unit has it: as another user from the start, with the helper's capabilities."""
    uid = 64_001
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False), start=False)
    host.write()
    for directory in lab.directory, host.directory:
        directory.chmod(0o755)
    (host.directory / "state").mkdir()
    for directory in host.run_dir, host.directory / "state":
        os.chown(directory, uid, uid)
    unit = (Path(__file__).parent.parent / "dist/viaductd.service").read_text().splitlines()
    granted = next(line for line in unit if line.startswith("AmbientCapabilities=")).partition("=")[2].split()
    sets = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in granted)])
    program = lab.directory / "viaductd"
    program.write_bytes(binary("viaductd").read_bytes())
    program.chmod(0o755)
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
    words += [f"--inh-caps={sets}", f"--ambient-caps={sets}", f"--bounding-set={sets}", program]
    words += ["--config", host.file, "--run-dir", host.run_dir, "--state-dir", host.directory / "state"]
    host.daemon = Background(host.namespace.words(words), host.directory / "viaductd.log")
    host.daemon.wait_for("ready")
    sandbox = host.viaduct("status")["sandbox"]
    assert (sandbox["uid"], sandbox["capabilities"], sandbox["bounding"], sandbox["missing"]) == (uid, [], [], [])
    assert (host.run_dir / "viaduct.sock").stat().st_uid == uid
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)


def test_directories_may_be_relative_to_the_working_directory(lab):
    host = lab.host(host_config("a", {"b1": vhost("b1")}, wire=False), start=False)
    host.write()
    words = ["env", "-C", host.directory, binary("viaductd"), "--config", "host.toml", "--run-dir", "run"]
    host.daemon = Background(host.namespace.words([*words, "--state-dir", "state"]), host.directory / "viaductd.log")
    host.daemon.wait_for("ready")
    assert host.socket("b1").is_socket()


def test_a_vmm_of_root_is_reached_in_the_run_dir_alone(lab):
    with socket.socket(socket.AF_UNIX) as vmm:
        vmm.bind(str(lab.directory / "vmm.sock"))
        vmm.listen()
        guest = vhost("b1", role="client", socket=str(lab.directory / "vmm.sock"))
        host = lab.host(host_config("a", {"b1": guest}, wire=False))
        host.daemon.wait_for("root listens there")


def test_sockets_are_in_directories_that_the_file_names(lab):
    """Sockets are in directories of the file's sockets, and of `socket_dirs`; the API adds none."""
    names = ["ofthefile", "listed", "other"]
    for name in names:
        (lab.directory / name).mkdir()
    at = lambda name: lab.directory / name / "vm.sock"
    config = host_config("a", {"b1": vhost("b1", socket=str(at("ofthefile")))}, wire=False)
    config.host["socket_dirs"] = [str(lab.directory / "listed")]
    host = lab.host(config)
    host.call("guest", "add", "b2", "--network", "blue", "--kind", "vhost", "--socket", at("listed"))
    host.call("guest", "add", "b3", "--network", "blue", "--kind", "vhost", "--socket", "b3.sock")
    refused = host.call(
        "guest", "add", "b4", "--network", "blue", "--kind", "vhost", "--socket", at("other"), check=False
    )
    assert refused.returncode != 0
    assert str(at("other")) in refused.stderr and "`socket_dirs`" in refused.stderr, refused.stderr
    assert [at(name).exists() for name in names] == [True, True, False]
    config.host["socket_dirs"].append(str(lab.directory / "other"))
    refused = host.call("apply", host.write(config), check=False)
    assert "socket_dirs can't change while the daemon runs" in refused.stderr
