"""Attacks by files, the API and the metrics endpoint: they hurt nobody else."""

import os
import socket
import stat
import threading
from contextlib import ExitStack, contextmanager

import pytest

from lab import PATIENCE, Driver, eventually, unharmed
from lab.topology import host_config, tap, vhost


METRICS = 9101
# Descriptors that connections of the metrics endpoint may take: one each, and some for what else goes on.
SCRAPES = 64 + 8


@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, a seat for a VM, and metrics over HTTP."""
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")}
    keys = {"metrics": f"127.0.0.1:{METRICS}", "socket_dirs": [f"{lab.directory}/vmm/**"]}
    host = lab.host(host_config("a", guests, wire=False, **keys))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    return host


def scrape(host):
    """Returns the metrics, or nothing where the connection is turned away."""
    with host.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(("127.0.0.1", METRICS))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = b""
            while piece := connection.recv(65536):
                text += piece
        except OSError:
            return b""
    return text if text.startswith(b"HTTP/1.1 200") else b""


def test_metrics_connections_that_say_nothing(host):
    """Connections that say nothing are bounded in number and time; scrapes go on."""
    pid = host.viaduct("status")["pid"]
    descriptors = lambda: len(os.listdir(f"/proc/{pid}/fd"))
    with unharmed(host, host.a1, host.a2), ExitStack() as stack:
        before = descriptors()
        for _ in range(500):
            connection = stack.enter_context(host.namespace.socket(socket.AF_INET, socket.SOCK_STREAM))
            connection.settimeout(PATIENCE)
            try:
                connection.connect(("127.0.0.1", METRICS))
                connection.sendall(b"GET /metrics")
            except OSError:
                break
        eventually(lambda: descriptors() - before <= SCRAPES, "few connections")
        eventually(lambda: scrape(host), "a scrape beside them")
    assert b"viaduct_" in scrape(host)


def test_api_connections_that_say_nothing(host):
    """However many there are, those of the operator come in beside them, and all descriptors are given back."""
    with unharmed(host, host.a1, host.a2), ExitStack() as stack:
        for _ in range(400):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            try:
                connection.connect(str(host.run_dir / "viaduct.sock"))
            except BlockingIOError:
                break
        host.viaduct("status")


@contextmanager
def racing(link, victim):
    """Keeps replacing a file by a link, as somebody can who may write its directory."""
    ending = threading.Event()
    fresh = link.with_name("fresh")

    def race():
        while not ending.is_set():
            try:
                fresh.symlink_to(victim)
                fresh.rename(link)
            except OSError:
                pass

    thread = threading.Thread(target=race, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_a_link_in_the_place_of_a_socket(host, lab):
    """A VMM puts links into its directory, where its guest's socket is: their targets keep owner and mode."""
    directory = lab.directory / "vmm"
    directory.mkdir()
    victim = lab.directory / "victim"
    victim.write_text("keep out")
    victim.chmod(0o600)
    path = directory / "b1.sock"
    path.symlink_to(victim)
    with unharmed(host, host.a1, host.a2), racing(path, victim):
        for number in range(60):
            config = host.config.copy()
            keys = {"socket": str(path), "owner": "nobody:nogroup", "socket_mode": "0666"} if number % 2 == 0 else {}
            config.entry("guest", "b1").update(keys)
            host.write(config)
            host.call("apply", host.file, check=False)
            status = victim.stat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (
                0,
                0o600,
            ), "what the link points to was given away"
        host.config = config.without("guest", name="b1")
        host.call("apply", host.write(), check=False)
        host.config = config
        host.write()
    assert victim.read_text() == "keep out"


def test_a_path_through_a_link(host, lab):
    """No socket is made behind a directory that is a link to one where nobody but root may write."""
    target = lab.directory / "system"
    target.mkdir(mode=0o755)
    directory = lab.directory / "vmm"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    (directory / "sockets").symlink_to(target)
    config = host.config.copy()
    config.entry("guest", "b1").update(socket=str(directory / "sockets" / "b1.sock"), owner="nobody:nogroup")
    with unharmed(host, host.a1, host.a2):
        host.call("apply", host.write(config), check=False)
        host.config = config
        assert not list(target.iterdir()), "made where the link of somebody else points to"
        config.entry("guest", "b1").update(socket="b1.sock")
        config.entry("guest", "b1").pop("owner")
        host.apply(config)


def test_churn_by_the_api_while_drivers_come_and_go(host):
    """Guests may be removed and made while their VMMs connect."""
    with unharmed(host, host.a1, host.a2):
        for _ in range(10):
            with Driver(host.socket("b1")) as driver:
                driver.post_buffers()
                host.call("guest", "del", "nobody", check=False)
                changed = host.config.without("guest", name="b1")
                host.call("apply", host.write(changed))
                host.config = changed
                back = host.config.copy().add(
                    "guest", name="b1", network="blue", **vhost("b1"), mac="02:00:00:00:01:0b", addresses=["10.1.1.11"]
                )
                host.apply(back)
