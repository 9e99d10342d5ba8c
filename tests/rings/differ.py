#!/usr/bin/python3
"""Makes random calls on both ends of connections, and holds each result against a model of what a stream socket may do.

    differ.py serve PORT CONTROL
    differ.py call ADDRESS PORT CONTROL SEED SECONDS

The caller decides, and has the server do its share by the unix socket CONTROL. Run it without the library first: where
the kernel's TCP fails, the model is wrong."""

import errno
import fcntl
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import time

PATIENCE = 20
# Bytes on their way at most, so that no call to send has to wait.
MOST = 100_000
PATTERN = bytes((i * 7 + (i >> 8)) & 255 for i in range(65521))


def stream(side, at, length):
    """Returns bytes of the endless stream of a side."""
    at = (at + side * 12345) % len(PATTERN)
    return (PATTERN * (length // len(PATTERN) + 2))[at : at + length]


def every(told):
    """Returns the events of the only descriptor, of which there is one entry at most."""
    assert len(told) <= 1, told
    return told[0][1] if told else 0


class End:
    """One end: each call returns bytes, a number or the name of an error."""

    def __init__(self, connection):
        self.one = connection
        self.one.settimeout(None)

    def do(self, name, *arguments):
        try:
            return getattr(self, name)(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno]

    # Sending.
    def send(self, data):
        return self.one.send(data)

    def write(self, data):
        return os.write(self.one.fileno(), data)

    def sendmsg(self, data):
        return self.one.sendmsg([data[:1], data[1 : len(data) // 2 + 1], data[len(data) // 2 + 1 :]])

    def writev(self, data):
        return os.writev(self.one.fileno(), [data[: len(data) // 3], data[len(data) // 3 :]])

    def sendfile(self, data):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            return os.sendfile(self.one.fileno(), file.fileno(), 0, len(data))

    def forked_send(self, data):
        """A child sends."""
        return self.in_child(lambda: self.one.send(data))

    # Receiving.
    def recv(self, length):
        return self.one.recv(length)

    def read(self, length):
        return os.read(self.one.fileno(), length)

    def recvmsg(self, length):
        pieces = [bytearray(length // 3), bytearray(length - length // 3)]
        got, *_ = self.one.recvmsg_into(pieces)
        return b"".join(pieces)[:got]

    def recv_at_once(self, length):
        return self.one.recv(length, socket.MSG_DONTWAIT)

    def nonblocking(self, length):
        self.one.setblocking(False)
        try:
            return self.one.recv(length)
        finally:
            self.one.setblocking(True)

    def peek(self, length):
        return self.one.recv(length, socket.MSG_PEEK)

    def all(self, length):
        return self.one.recv(length, socket.MSG_WAITALL)

    def in_time(self, length):
        self.one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
        try:
            return self.one.recv(length)
        finally:
            self.one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

    def forked_recv(self, length):
        return self.in_child(lambda: self.one.recv(length))

    def in_child(self, does):
        reads, writes = os.pipe()
        if os.fork() == 0:
            try:
                told = does()
            except OSError as error:
                told = errno.errorcode[error.errno]
            os.write(writes, pickle.dumps(told))
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as file:
            told = pickle.loads(file.read())
        os.wait()
        return told

    # Waiting, for so many seconds: whether it can be read, and written.
    def poll(self, seconds):
        poll = select.poll()
        poll.register(self.one, select.POLLIN | (0 if seconds else select.POLLOUT))
        events = every(poll.poll(seconds * 1000))
        return bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)

    def select(self, seconds):
        readable, writable, _ = select.select([self.one], [] if seconds else [self.one], [], seconds)
        return bool(readable), bool(writable)

    def epoll(self, seconds, flags=0):
        with select.epoll() as epoll:
            epoll.register(self.one, flags | select.EPOLLIN | (0 if seconds else select.EPOLLOUT))
            events = every(epoll.poll(seconds))
        return bool(events & ~select.EPOLLOUT), bool(events & select.EPOLLOUT)

    def edge(self, seconds):
        return self.epoll(seconds, select.EPOLLET)

    def writable(self, seconds):
        return bool(select.select([], [self.one], [], seconds)[1])

    # The rest.
    def waiting(self):
        return struct.unpack("i", fcntl.ioctl(self.one, termios.FIONREAD, bytes(4)))[0]

    def dup(self):
        other = socket.socket(fileno=os.dup(self.one.fileno()))
        self.one.close()
        self.one = other
        return 0

    def nodelay(self, value):
        self.one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, value)
        return self.one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def error(self):
        return self.one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def names(self):
        return self.one.getsockname()[1] == self.one.getpeername()[1]

    def shutdown(self):
        self.one.shutdown(socket.SHUT_WR)
        return 0

    def close(self):
        self.one.close()
        return 0


SENDS = ["send", "write", "sendmsg", "writev", "sendfile", "forked_send"]
WAITING_READS = ["recv", "read", "recvmsg", "peek", "all", "forked_recv"]
OTHER_READS = ["recv_at_once", "nonblocking", "in_time"]
WAITS = ["poll", "select", "epoll", "edge"]
OTHERS = ["waiting", "dup", "nodelay", "error", "names"]


class Model:
    """A connection, and what was done to it. `ends`: functions that do a call at each end."""

    def __init__(self, ends, chance):
        self.ends, self.chance = ends, chance
        self.sent, self.got, self.shut = [0, 0], [0, 0], [False, False]
        self.log = []

    def call(self, side, name, *arguments):
        told = [len(word) if isinstance(word, bytes) else word for word in arguments]
        self.log.append((side, name, *told))
        result = self.ends[side](name, *arguments)
        self.log.append(len(result) if isinstance(result, bytes) else result)
        return result

    def must(self, holds):
        if not holds:
            raise AssertionError("\n".join(map(str, self.log[-40:])))

    def ahead(self, side):
        """Returns the bytes that a side has not read yet."""
        return self.sent[1 - side] - self.got[side]

    def step(self):
        side = self.chance.randrange(2)
        kind = self.chance.choices([self.sends, self.reads, self.waits, self.others, self.shuts], [6, 6, 3, 2, 0.1])[0]
        signal.alarm(2 * PATIENCE)
        try:
            kind(side)
        except TimeoutError:
            self.must(False)

    def sends(self, side):
        length = min(self.chance.choice([1, 2, 10, 100, 4096, 30_000, 70_000]), MOST - self.ahead(1 - side))
        if length <= 3:
            return
        name = self.chance.choice(SENDS)
        result = self.call(side, name, stream(side, self.sent[side], length))
        if self.shut[side]:
            self.must(result == "EPIPE")
            return
        # TCP takes what there is room for, which is all of it but for files.
        self.must(result == length or (isinstance(result, int) and 0 < result < length))
        self.sent[side] += result

    def reads(self, side):
        ahead, ended = self.ahead(side), self.shut[1 - side]
        waits = ahead > 0 or ended
        name = self.chance.choice(WAITING_READS * waits + OTHER_READS)
        length = self.chance.choice([1, 5, 1000, 65_536, 200_000])
        if name == "all":
            length = max(1, min(length, ahead))
        result = self.call(side, name, length)
        if result == "EAGAIN":
            # It is on its way at most.
            self.must(name in OTHER_READS)
            return
        self.must(isinstance(result, bytes) and len(result) <= min(length, ahead))
        self.must(bool(result) or (ended and ahead == 0))
        self.must(name != "all" or len(result) == length or ended)
        self.must(result == stream(1 - side, self.got[side], len(result)))
        if name != "peek":
            self.got[side] += len(result)

    def waits(self, side):
        must = self.ahead(side) > 0 or self.shut[1 - side]
        name = self.chance.choice(WAITS)
        readable, writable = self.call(side, name, self.chance.choice([0, PATIENCE]) if must else 0)
        waited = self.log[-2][2] != 0
        self.must(not readable or must)
        self.must(readable or not (must and waited))
        # A socket with much on its way may be full, and takes a moment to hear that it was read.
        if not waited and not writable and self.ahead(1 - side) <= 8192:
            self.must(self.call(side, "writable", PATIENCE))

    def others(self, side):
        name = self.chance.choice(OTHERS)
        value = self.chance.randrange(2)
        result = self.call(side, name, *([value] if name == "nodelay" else []))
        wanted = {"dup": 0, "error": 0, "names": False}
        if name == "waiting":
            self.must(0 <= result <= self.ahead(side))
        elif name == "nodelay":
            self.must(bool(result) == bool(value))
        else:
            # Once both have ended, the kernel may forget the peer.
            self.must(result == wanted[name] or (name == "names" and all(self.shut) and result == "ENOTCONN"))

    def shuts(self, side):
        if self.shut[side]:
            return
        self.must(self.call(side, "shutdown") == 0)
        self.shut[side] = True

    def finish(self):
        """Reads both streams to their ends."""
        for side in (0, 1):
            self.shuts(side)
        for side in (0, 1):
            while data := self.call(side, "recv", 65536):
                self.must(isinstance(data, bytes) and data == stream(1 - side, self.got[side], len(data)))
                self.got[side] += len(data)
            self.must(self.ahead(side) == 0)
        for side in (0, 1):
            self.must(self.call(side, "close") == 0)


def serve(port, control):
    with socket.create_server(("", int(port))) as listener, socket.socket(socket.AF_UNIX) as asks:
        asks.bind(control)
        asks.listen()
        print("ready", flush=True)
        file = asks.accept()[0].makefile("rwb")
        ends = {}
        while True:
            try:
                number, name, arguments = pickle.load(file)
            except EOFError:
                break
            if name == "accept":
                ends[number] = End(listener.accept()[0])
                result = 0
            else:
                result = ends[number].do(name, *arguments)
            pickle.dump(result, file)
            file.flush()
    print("done", flush=True)


def hangs(*_):
    raise TimeoutError


def call(address, port, control, seed, seconds):
    signal.signal(signal.SIGALRM, hangs)
    chance, until = random.Random(int(seed)), time.monotonic() + float(seconds)
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect(control)
        file, number = asks.makefile("rwb"), 0

        def ask(number, name, *arguments):
            pickle.dump((number, name, arguments), file)
            file.flush()
            return pickle.load(file)

        steps = 0
        while time.monotonic() < until:
            models = []
            for _ in range(chance.randrange(1, 4)):
                number += 1
                # Both ends wait for the match in the modes for tests, so neither may wait for the other.
                pickle.dump((number, "accept", ()), file)
                file.flush()
                own = End(socket.create_connection((address, int(port))))
                assert pickle.load(file) == 0
                there = lambda name, *arguments, number=number: ask(number, name, *arguments)
                models.append(Model([own.do, there], chance))
            for _ in range(chance.randrange(20, 200)):
                chance.choice(models).step()
                steps += 1
            for model in models:
                model.finish()
    print(f"{number} connections, {steps} steps", flush=True)


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
