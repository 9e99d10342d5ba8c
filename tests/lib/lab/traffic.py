"""Simple TCP and UDP traffic between guests: whether a connection works, and how fast a stream is."""

import json
import re
import socket
import threading
from contextlib import contextmanager

from .shell import PATIENCE, Failed, eventually

# A state of TCP (linux/tcp_states.h).
SYN_SENT = 2


class EchoServer:
    """Echoes on a TCP and a UDP port of a namespace while the `with` block runs."""

    def __init__(self, guest, port, family=socket.AF_INET):
        self.tcp = guest.namespace.socket(family, socket.SOCK_STREAM)
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.udp = guest.namespace.socket(family, socket.SOCK_DGRAM)
        for one in (self.tcp, self.udp):
            one.bind(("", port))
            one.settimeout(0.2)
        self.tcp.listen()
        self.ending = threading.Event()

    def __enter__(self):
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._datagrams)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.tcp.close()
        self.udp.close()

    def _accept(self):
        while not self.ending.is_set():
            try:
                connection, _ = self.tcp.accept()
            except TimeoutError:
                continue
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection):
        with connection:
            connection.settimeout(0.2)
            while not self.ending.is_set():
                try:
                    data = connection.recv(65536)
                    if not data:
                        return
                    connection.sendall(data)
                except TimeoutError:
                    continue
                except OSError:
                    return

    def _datagrams(self):
        while not self.ending.is_set():
            try:
                data, sender = self.udp.recvfrom(65536)
                self.udp.sendto(data, sender)
            except OSError:
                continue


@contextmanager
def dropping(host, reason, packets=1):
    """Waits, at the end of the block, until the host has dropped that many more packets for this reason."""
    count = lambda: host.drops().get(reason, 0)
    before = count()
    yield
    eventually(lambda: count() >= before + packets, f"{packets} x drop {reason}")


def connect(guest, address, port, timeout=PATIENCE):
    """Makes a TCP connection from a guest. Raises ConnectionRefusedError if refused."""
    connection = guest.namespace.socket(_family(address), socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect((address, port))
        return connection
    except OSError:
        connection.close()
        raise


def connect_in_vain(host, reason, guest, address, port):
    """Begins a TCP connection from a guest, waits until the host has dropped its first packet for that reason, and
    fails if the connection is made all the same."""
    with guest.namespace.socket(_family(address), socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        with dropping(host, reason):
            connection.connect_ex((address, port))
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    if state != SYN_SENT:
        raise Failed(f"{guest.name} connects to {address}, port {port}: state {state}")


def arrived(connection):
    """Returns what has come to a socket and waits there, without waiting for more; None if there is nothing."""
    timeout = connection.gettimeout()
    connection.setblocking(False)
    try:
        return connection.recv(65536)
    except BlockingIOError:
        return None
    finally:
        connection.settimeout(timeout)


def answers(connection, text=b"hello"):
    """Says whether data sent on a connection comes back."""
    try:
        connection.sendall(text)
        return connection.recv(65536) == text
    except TimeoutError:
        return False


def datagram(guest, address, port, text=b"hello", timeout=PATIENCE):
    """Says whether a UDP datagram is answered."""
    with guest.namespace.socket(_family(address), socket.SOCK_DGRAM) as sender:
        sender.settimeout(timeout)
        sender.sendto(text, (address, port))
        try:
            return sender.recvfrom(65536)[0] == text
        except OSError:
            return False


def send(guest, address, port, text=b"hello"):
    """Sends a UDP datagram, and waits for nothing."""
    with guest.namespace.socket(_family(address), socket.SOCK_DGRAM) as sender:
        sender.sendto(text, (address, port))


def send_in_vain(host, reason, guest, address, port, text=b"hello"):
    """Sends a UDP datagram, waits until the host has dropped it for that reason, and fails if it is answered all the
    same."""
    with guest.namespace.socket(_family(address), socket.SOCK_DGRAM) as sender:
        with dropping(host, reason):
            sender.sendto(text, (address, port))
        answer = arrived(sender)
    if answer is not None:
        raise Failed(f"{guest.name} has an answer from {address}, port {port}: {answer}")


def _family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def tcp_rate(client, server, address, *, seconds=2, options=()):
    """Measures the rate of one TCP connection in Mbit/s, by iperf3; with options ("-n", "4M") for this many bytes."""
    listen = ["iperf3", "-s", "-1", "-D", "-B", address, "--idle-timeout", "120"]
    amount = options if "-n" in options else ("-t", seconds, *options)
    connect = ["iperf3", "-c", address, "-J", "--connect-timeout", "120000", *amount]
    refused = "unable to connect to server: Connection refused"

    def attempt():
        # In the background it does not tell that the address is still taken, by the server of the last call.
        server.run(listen, check=False)
        output = client.run(connect, check=False, timeout=seconds + 2 * PATIENCE).stdout
        return refused not in output and output

    report = eventually(attempt, "an iperf3 server")
    try:
        return json.loads(report[report.index("{"):])["end"]["sum_received"]["bits_per_second"] / 1e6
    except (KeyError, ValueError):
        raise Failed(f"iperf3 to {address}: {report[-500:]}") from None


def round_trip(output):
    """Reads the average round-trip time in milliseconds out of a ping's output."""
    return float(re.search(r"= [\d.]+/([\d.]+)/", output)[1])
