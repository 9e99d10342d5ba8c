#!/usr/bin/python3
"""Both ends of a connection that has short messages with answers, then a stream, then short messages.

    turns.py serve PORT
    turns.py call ADDRESS PORT GO

Both wait for edges of epoll. The caller prints "short", "stream" and "again" after each part. It goes on once somebody
writes to the FIFO GO.
"""

import select
import socket
import sys

LONG = 1 << 20


class Edges:
    """A connection that waits for edges."""

    def __init__(self, connection):
        self.connection, self.epoll = connection, select.epoll()
        connection.setblocking(False)
        self.epoll.register(connection.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def attempt(self, call, *arguments):
        while True:
            try:
                return call(*arguments)
            except BlockingIOError:
                self.epoll.poll()

    def recv(self, length):
        return self.attempt(self.connection.recv, length)

    def sendall(self, data):
        while data:
            data = data[self.attempt(self.connection.send, data) :]


def all_of(connection, length):
    got = b""
    while len(got) < length:
        data = connection.recv(length - len(got))
        if not data:
            sys.exit(0)
        got += data
    return got


def serve(port):
    with socket.create_server(("0.0.0.0", port)) as listener:
        print("ready", flush=True)
        connection = Edges(listener.accept()[0])
        while True:
            length = int.from_bytes(all_of(connection, 4), "big")
            for _ in range(8 if length == LONG else 1):
                assert all_of(connection, length) == bytes(length)
            connection.sendall(b"y")


def call(address, port, go):
    with socket.create_connection((address, port)) as plain:
        connection = Edges(plain)
        for name, length in (("short", 100), ("stream", LONG), ("again", 100)):
            for _ in range(60 if length == 100 else 4):
                connection.sendall(length.to_bytes(4, "big") + bytes(length))
                for _ in range(7 if length == LONG else 0):
                    connection.sendall(bytes(length))
                assert all_of(connection, 1) == b"y"
            print(name, flush=True)
            with open(go, "rb") as fifo:
                fifo.read()
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        call(sys.argv[2], int(sys.argv[3]), sys.argv[4])
