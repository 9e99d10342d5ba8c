"""The API as other programs use it: docs/api.md and its example, the socket for reading, clients that misbehave."""

import grp
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lab import PATIENCE, binary, eventually, run
from lab.host import REPOSITORY
from lab.topology import SEATS, host_config, tap

PAGE = (REPOSITORY / "docs/api.md").read_text()
NOBODY = 65534


@pytest.fixture
def host(lab):
    lab.plug("a")
    group = grp.getgrgid(NOBODY).gr_name
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, readers=group))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    return host


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """Generates the client's modules by the command of the page."""
    out = tmp_path_factory.mktemp("stubs")
    command = next(line for line in PAGE.splitlines() if line.startswith("protoc "))
    subprocess.run(command.replace("_out=.", f"_out={out}"), shell=True, check=True, cwd=REPOSITORY, timeout=PATIENCE)
    return out


def test_a_program_attaches_a_container(host, stubs, tmp_path):
    control = host.run_dir / "viaduct.sock"
    command = ["ip", "netns", "exec", host.namespace.name, sys.executable, REPOSITORY / "examples/attach.py",
               control, "blue", "c9", "10.1.1.99"]  # fmt: skip
    example = subprocess.Popen([*map(str, command)], env={**os.environ, "PYTHONPATH": str(stubs)}, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert example.stdout.readline() == 'add guest "c9"\n'
        # It waits until the interface is up, as one in a container would be.
        host.namespace.ip("link set c9 up")
        assert example.stdout.readline().startswith("c9 is up, MAC 02:00:00:00:0a:01, MTU ")
        host.namespace.ip("addr add 10.1.1.99/24 dev c9")
        host.a1.expect_ping("10.1.1.99")
        printed, _ = example.communicate("\n", timeout=PATIENCE)
    finally:
        example.kill()
    assert re.fullmatch(r"([1-9]\d*) packets from it, ([1-9]\d*) to it\n", printed), printed
    assert "c9" not in {guest["name"] for guest in host.viaduct("guest")}


def test_a_refusal_is_one_line(host, stubs):
    control = host.run_dir / "viaduct.sock"
    command = [sys.executable, REPOSITORY / "examples/attach.py", control, "bleu", "c9", "10.1.1.99"]
    done = subprocess.run([*map(str, command)], env={**os.environ, "PYTHONPATH": str(stubs)}, text=True,
                          capture_output=True, timeout=PATIENCE, check=False)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_ARGUMENT: ") and "bleu" in done.stderr, done.stderr


@pytest.mark.nightly
def test_a_program_in_go_attaches_a_container(host, tmp_path):
    there = shutil.copytree(REPOSITORY / "examples/go", tmp_path / "examples/go", ignore=shutil.ignore_patterns("api"))
    (tmp_path / "crates").symlink_to(REPOSITORY / "crates")
    commands = next(block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "go build" in block)
    subprocess.run(["bash", "-e", "-c", commands], check=True, cwd=there, timeout=600)
    command = ["ip", "netns", "exec", host.namespace.name, there / "attach", host.run_dir / "viaduct.sock", "blue", "c9",
               "10.1.1.99"]  # fmt: skip
    with subprocess.Popen([*map(str, command)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as example:
        assert example.stdout.readline() == 'add guest "c9"\n'
        host.call("rt", "add", "10.7.0.0/16", "--to", "drop")
        host.namespace.ip("link set c9 up")
        lines = [example.stdout.readline() for _ in range(2)]
        assert any(re.fullmatch(r"revision \d+ KIND_ROUTE 10.7.0.0/16\n", line) for line in lines), lines
        assert "c9 is up: close the input to remove it\n" in lines
        example.communicate(timeout=PATIENCE)
    assert example.returncode == 0
    assert "c9" not in {guest["name"] for guest in host.viaduct("guest")}


def as_nobody(host, *words):
    """Runs `viaduct` as a user of the readers' group and no other."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
               binary("viaduct"), "--run-dir", host.run_dir, *words]  # fmt: skip
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_readers_read(host):
    os.chmod(host.run_dir.parent, 0o755)
    os.chmod(host.run_dir.parent.parent, 0o755)
    seen = as_nobody(host, "status")
    assert seen.returncode == 0 and "a1" in seen.stdout, seen
    for words in (["guest", "del", "a1"], ["flow", "flush"], ["capture", "--count", "1"]):
        refused = as_nobody(host, *words)
        assert refused.returncode == 1 and "this socket is for reading" in refused.stderr, refused
    assert {"a1", "a2"} <= {guest["name"] for guest in host.viaduct("guest")}
    refused = as_nobody(host, "diff", host.file)
    assert refused.returncode == 1 and "this socket is for reading: diff needs" in refused.stderr, refused
    assert "nothing was changed" not in refused.stderr, refused


def test_no_guest_can_have_a_socket_named_as_what_is_in_the_run_dir(host):
    """The list by which configurations are checked has all files that a daemon makes. One is there only during
    --replace."""
    source = (REPOSITORY / "crates/config/src/object.rs").read_text()
    listed = re.findall('"(.*)"', re.search(r"const OWN_FILES.*?;\n", source.replace("; ", " "), re.S)[0])
    assert {path.name for path in host.run_dir.iterdir()} == {*listed} - {"taps-next.sock"}


def test_sockets_that_cannot_be_had_stop_nobody(lab):
    """A host starts although nobody made its readers' group, and another program has its metrics' port."""
    lab.plug("a")
    keys = {"readers": "no-such-group", "metrics": "127.0.0.1:9101"}
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, **keys), start=False)
    with host.namespace.entered(), socket.create_server(("127.0.0.1", 9101)):
        host.start()
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(SEATS["a2"].address)
    warnings = [warning["message"] for warning in host.viaduct("status")["warnings"]]
    assert any(text.startswith('readers: there is no group "no-such-group"') for text in warnings), warnings
    assert any(text.startswith("metrics: 127.0.0.1:") for text in warnings), warnings
    assert "nobody is served there" in host.daemon.text()
    assert 'no group "no-such-group"' in host.call("check", host.file).stdout
    # The port is free now.
    host.replace()
    warnings = [warning["message"] for warning in host.viaduct("status")["warnings"]]
    assert not any(text.startswith("metrics") for text in warnings), warnings
    with host.namespace.entered(), socket.create_connection(("127.0.0.1", 9101)):
        pass


def test_a_group_that_comes_later_is_served(lab):
    group = f"viaduct-{os.getpid()}"
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False, readers=group))
    socket_file = host.run_dir / "viaduct-read.sock"
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
    lab.cleanup.callback(lambda: run(["groupdel", group], check=False))
    run(["groupadd", group])
    eventually(lambda: stat.S_IMODE(socket_file.stat().st_mode) == 0o660, "the socket of the group")
    assert socket_file.group() == group
    warned = lambda: any("readers" in warning["message"] for warning in host.viaduct("status")["warnings"])
    eventually(lambda: not warned(), "no warning of it")
    host.replace()
    assert socket_file.group() == group
    host.stop()
    assert not socket_file.exists()


def test_a_socket_that_cannot_be_given_to_its_group_is_told_of(lab):
    """There is a warning where another file is in the socket's place."""
    group = f"viaduct-{os.getpid()}"
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False, readers=group))
    socket_file = host.run_dir / "viaduct-read.sock"
    socket_file.unlink()
    socket_file.touch(0o600)
    lab.cleanup.callback(lambda: run(["groupdel", group], check=False))
    run(["groupadd", group])
    warnings = lambda: [warning["message"] for warning in host.viaduct("status")["warnings"]]
    told = lambda: [text for text in warnings() if text.startswith("readers: the socket can't be given")]
    eventually(told, "a warning of it")
    assert not any("there is no group" in text for text in warnings())
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600


def test_clients_that_send_garbage_cost_nobody_anything(host):
    path = str(host.run_dir / "viaduct.sock")
    clients = []
    for text in (b"\0" * 100_000, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 50_000):
        for _ in range(10):
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            client.settimeout(1)
            try:
                client.sendall(text)
            except OSError:
                pass
            clients.append(client)
    assert host.viaduct("status")
    host.a1.expect_ping(SEATS["a2"].address)
    for client in clients:
        client.close()


def resident(pid):
    """Reads the memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


NEVER_READS = """
import sys
import attach

viaduct = attach.connect(sys.argv[1])
streams = [viaduct.Capture(attach.api.CaptureRequest()) for _ in range(4)]
streams += [viaduct.Flows(attach.api.FlowsRequest()) for _ in range(4)]
print("asked", flush=True)
sys.stdin.read()
"""


def test_a_client_that_never_reads_its_streams_costs_nobody_anything(host, stubs):
    """More is captured for it than its connection holds; the daemon keeps little of that."""
    path = os.pathsep.join((str(stubs), str(REPOSITORY / "examples")))
    client = subprocess.Popen([sys.executable, "-c", NEVER_READS, str(host.run_dir / "viaduct.sock")], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    try:
        assert client.stdout.readline() == "asked\n"
        pid = host.viaduct("status")["pid"]
        memory = resident(pid)
        host.a1.run(["ping", "-q", "-f", "-c", "20000", "-s", "1400", SEATS["a2"].address], timeout=600)
        # Each stream had 110 MB and more, and holds a few thousand packets at most.
        assert resident(pid) < memory + (200 << 20)
        assert host.viaduct("status")
        with socket.socket(socket.AF_UNIX) as another:
            another.connect(str(host.run_dir / "viaduct.sock"))
    finally:
        client.kill()
    host.a1.expect_ping(SEATS["a2"].address)
