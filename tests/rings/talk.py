#!/usr/bin/python3
"""Both ends of connections that send to each other at the same time, and check every byte.

    talk.py serve PORT KIND BYTES CONNECTIONS
    talk.py call ADDRESS PORT KIND BYTES CONNECTIONS

KIND: block, poll, select, epoll or edge (edge-triggered). The server prints "ready" once it listens, both print "done"
at the end. With PAUSE set, each end sends its second half only when a line comes from standard input."""

import os
import random
import select
import socket
import sys
import threading

PERIOD = 65521
PATTERNS = [bytes((i * (2 * k + 3) + (i >> 8) * 7 + k) & 255 for i in range(PERIOD)) for k in range(2)]
SIZES = [1, 7, 100, 1000, 5000, 70000, 300000]
PATIENCE = 60
PAUSE = threading.Event()


def part(side, position, length):
    """Returns bytes of the endless stream of one side."""
    start = position % PERIOD
    return (PATTERNS[side] * (length // PERIOD + 2))[start : start + length]


class Talk:
    def __init__(self, connection, side, total, chance):
        self.connection, self.side, self.total, self.chance = connection, side, total, chance
        self.sent = self.got = 0

    def greet(self):
        """Sends and receives a little, so that the library offers the connection."""
        for _ in range(4):
            self.connection.sendall(b"hello")
        got = 0
        while got < 20:
            got += len(self.connection.recv(20 - got))

    def next(self):
        """Returns what comes next."""
        if self.sent >= self.total // 2:
            PAUSE.wait()
        length = min(self.total - self.sent, self.chance.choice(SIZES))
        return part(self.side, self.sent, length)

    def check(self, data):
        assert data == part(1 - self.side, self.got, len(data)), f"wrong bytes within {len(data)} at {self.got}"
        self.got += len(data)

    def ended(self):
        assert self.got == self.total, f"the end came after {self.got} of {self.total} bytes"

    def read(self):
        return self.connection.recv(self.chance.choice([1, 10, 4096, 65536, 200000]))

    def block(self):
        def send():
            while self.sent < self.total:
                data = self.next()
                self.connection.sendall(data)
                self.sent += len(data)
            self.connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=guard, args=(send,))
        sender.start()
        while data := self.read():
            self.check(data)
        sender.join()
        self.ended()

    def waiter(self, kind):
        """Returns a function that waits, for reading and for writing, and says what is possible."""
        one = self.connection
        if kind == "select":

            def wait(reads, writes):
                readable, writable, _ = select.select([one] * reads, [one] * writes, [], PATIENCE)
                return bool(readable), bool(writable)

            return wait
        edge = select.EPOLLET if kind == "edge" else 0
        poll = select.poll() if kind == "poll" else select.epoll()
        poll.register(one.fileno(), edge | select.EPOLLIN | select.EPOLLOUT)
        patience = PATIENCE * 1000 if kind == "poll" else PATIENCE

        def wait(reads, writes):
            if not edge:
                poll.modify(one.fileno(), select.EPOLLIN * reads | select.EPOLLOUT * writes)
            events = [event for _, event in poll.poll(patience)]
            readable = any(event & ~select.EPOLLOUT for event in events)
            return readable, any(event & select.EPOLLOUT for event in events)

        return wait

    def ready(self, kind):
        self.connection.setblocking(False)
        wait = self.waiter(kind)
        reads = writes = True
        readable = writable = False
        while reads or writes:
            if not (readable and reads or writable and writes):
                readable, writable = wait(reads, writes)
                assert readable or writable, f"nothing happens: {self.sent} sent, {self.got} received"
            if writable and writes:
                try:
                    self.sent += self.connection.send(self.next())
                except BlockingIOError:
                    writable = False
                if self.sent == self.total:
                    self.connection.shutdown(socket.SHUT_WR)
                    writes = False
            if readable and reads:
                try:
                    data = self.read()
                    self.check(data)
                    reads = bool(data)
                except BlockingIOError:
                    readable = False
        self.ended()


def guard(work, *arguments):
    """Ends the whole program if a thread fails."""
    try:
        work(*arguments)
    except BaseException as error:
        print(f"failed: {error!r}", flush=True)
        os._exit(1)


def talk(connection, side, number, kind, total):
    one = Talk(connection, side, total, random.Random(2 * number + side))
    one.greet()
    if kind == "block":
        one.block()
    else:
        one.ready(kind)
    connection.close()


def main(does, *words):
    if does == "serve":
        port, kind, total, count = words
        listener = socket.create_server(("", int(port)), backlog=128)
        print("ready", flush=True)
        connect = lambda: listener.accept()[0]
    else:
        address, port, kind, total, count = words
        connect = lambda: socket.create_connection((address, int(port)), PATIENCE)
    if "PAUSE" not in os.environ:
        PAUSE.set()
    threads = []
    for number in range(int(count)):
        connection = connect()
        connection.settimeout(None)
        arguments = (talk, connection, int(does == "serve"), number, kind, int(total))
        threads.append(threading.Thread(target=guard, args=arguments))
        threads[-1].start()
    if not PAUSE.is_set():
        sys.stdin.readline()
        PAUSE.set()
    for thread in threads:
        thread.join()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
