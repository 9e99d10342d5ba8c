#!/usr/bin/python3
"""Both ends of a connection that has short messages with answers, then a stream, then short messages.

    turns.py serve PORT
    turns.py call ADDRESS PORT GO

The caller prints "short", "stream" and "again" after each part. It goes on once somebody writes to the FIFO GO.
"""

import socket
import sys

LONG = 1 << 20


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
        connection, _ = listener.accept()
        while True:
            length = int.from_bytes(all_of(connection, 4), "big")
            for _ in range(8 if length == LONG else 1):
                assert all_of(connection, length) == bytes(length)
            connection.sendall(b"y")


def call(address, port, go):
    with socket.create_connection((address, port)) as connection:
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
