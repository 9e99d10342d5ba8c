#!/usr/bin/python3
"""Forks with a connection, hands it on, or dies with it, at both ends, and checks every byte.

    fates.py serve PORT FATE
    fates.py call ADDRESS PORT FATE"""

import array
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time

LOTS = 100_000
TEXT = bytes(range(256)) * (LOTS // 256 + 1)


def exactly(connection, length):
    got = bytearray()
    while len(got) < length:
        data = connection.recv(length - len(got))
        assert data, f"the end came after {len(got)} of {length} bytes"
        got += data
    return bytes(got)


def warm(connection, calls):
    """Sends to and fro until the connection has long been moved."""
    for number in range(200):
        message = number.to_bytes(4, "big")
        if calls:
            connection.sendall(message)
            assert exactly(connection, 4) == message
        else:
            connection.sendall(exactly(connection, 4))


def to_end(connection):
    got = bytearray()
    while data := connection.recv(65536):
        got += data
    return bytes(got)


def same(got, wanted):
    at = next((at for at, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    assert got == wanted, f"{len(got)} bytes instead of {len(wanted)}, {got[at : at + 20]} at {at}"


class Client:
    """The end whose peer undergoes something."""

    def fork(self, connection):
        """The peer's fork goes on with the connection."""
        connection.sendall(TEXT)
        assert exactly(connection, len(TEXT)) == TEXT
        warm(connection, True)

    def execute(self, connection):
        """The peer gives it to a program without the library, which has unread bytes."""
        connection.sendall(TEXT)
        same(exactly(connection, 5 + len(TEXT)), b"first" + TEXT)
        connection.shutdown(socket.SHUT_WR)
        assert to_end(connection) == b""

    def rights(self, connection):
        """The peer passes it to a process without the library."""
        connection.sendall(TEXT)
        same(exactly(connection, len(TEXT)), TEXT)
        connection.shutdown(socket.SHUT_WR)
        assert to_end(connection) == b""

    def late(self, connection):
        """The peer gives it away after the end of the stream, with bytes unread: all of them, or a reset."""
        connection.sendall(TEXT)
        connection.shutdown(socket.SHUT_WR)
        try:
            same(to_end(connection), TEXT)
        except ConnectionResetError:
            pass

    def killed(self, connection):
        """The peer is killed after it has sent."""
        assert to_end(connection) == TEXT

    def unread(self, connection):
        """The peer closes with bytes unread."""
        connection.sendall(b"x" * 1000)
        try:
            assert to_end(connection) == TEXT
        except ConnectionResetError:
            pass
        try:
            for _ in range(100):
                connection.sendall(b"x")
                time.sleep(0.02)
        except (ConnectionResetError, BrokenPipeError):
            return
        raise AssertionError("a peer that is gone takes bytes")

    def closed(self, connection):
        """The peer has read all and closed, and then much is sent."""
        self.until_closed(connection)
        try:
            connection.sendall(TEXT * 20)
        except (ConnectionResetError, BrokenPipeError):
            return
        raise AssertionError("a peer that is gone takes bytes")

    def polled(self, connection):
        """The same, and the program polls for room."""
        self.until_closed(connection)
        connection.setblocking(False)
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        try:
            while poll.poll(20_000):
                connection.send(TEXT)
        except (ConnectionResetError, BrokenPipeError):
            return
        raise AssertionError("a peer that is gone takes bytes")

    def until_closed(self, connection):
        connection.sendall(b"x" * 1000)
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        assert poll.poll(20_000), "the peer does not close"

    def halves(self, connection):
        """The peer shuts its side and reads on."""
        assert to_end(connection) == TEXT
        connection.sendall(TEXT)
        connection.shutdown(socket.SHUT_WR)

    def again(self, connection):
        """Duplicates stay one connection."""
        other = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        other.sendall(TEXT)
        assert exactly(other, len(TEXT)) == TEXT

    def stream(self, connection):
        """The peer has it as a file."""
        connection.sendall(TEXT)
        assert exactly(connection, 6) == b"answer"


class Server:
    def fork(self, connection):
        if os.fork():
            connection.close()
            _, status = os.wait()
            assert status == 0
            return
        connection.sendall(exactly(connection, len(TEXT)))
        warm(connection, False)
        os._exit(0)

    def execute(self, connection):
        connection.sendall(b"first")
        connection.set_inheritable(True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "VIADUCT"))}
        time.sleep(0.2)
        if os.fork() == 0:
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.execvpe("cat", ["cat"], environment)
        connection.close()
        _, status = os.wait()
        assert status == 0

    def rights(self, connection):
        ours, theirs = socket.socketpair()
        program = (
            "import socket, array; s = socket.socket(fileno=0); m, a, *_ = s.recvmsg(1, 100);"
            "c = socket.socket(fileno=array.array('i', a[0][2][:4])[0]);"
            "[c.sendall(b) for b in iter(lambda: c.recv(65536), b'')]"
        )
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "VIADUCT"))}
        child = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, env=environment)
        time.sleep(0.2)
        rights = array.array("i", [connection.fileno()])
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        connection.close()
        child.wait()

    late = rights

    def killed(self, connection):
        connection.sendall(TEXT)
        print("done", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def unread(self, connection):
        connection.sendall(TEXT)
        time.sleep(0.2)
        connection.close()
        time.sleep(0.5)

    def closed(self, connection):
        exactly(connection, 1000)

    polled = closed

    def halves(self, connection):
        connection.sendall(TEXT)
        connection.shutdown(socket.SHUT_WR)
        assert to_end(connection) == TEXT

    def again(self, connection):
        connection.sendall(exactly(connection, len(TEXT)))

    def stream(self, connection):
        time.sleep(0.2)
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        file, got = ctypes.c_void_p(libc.fdopen(connection.fileno(), b"rb")), ctypes.create_string_buffer(len(TEXT))
        assert libc.fread(got, 1, ctypes.c_size_t(len(TEXT)), file) == len(TEXT)
        assert got.raw == TEXT
        connection.sendall(b"answer")


def main(does, *words):
    if does == "serve":
        port, fate = words
        with socket.create_server(("", int(port))) as listener:
            print("ready", flush=True)
            connection, _ = listener.accept()
    else:
        address, port, fate = words
        connection = socket.create_connection((address, int(port)))
    warm(connection, does == "call")
    getattr(Client() if does == "call" else Server(), fate)(connection)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
