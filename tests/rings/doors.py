#!/usr/bin/python3
"""Connections of one program with others that share a file of memory with it, one of which is hostile.

    doors.py serve PORT                         echoes what comes by any connection, by epoll
    doors.py call ADDRESS PORT                  has echoes, and checks them
    doors.py fork ADDRESS PORT                  has a fork, and then one more connection, which the fork must not see
    doors.py forks ADDRESS PORT                 forks many times just when files are unmapped
    doors.py closed                             closes a connection that the daemon still has, and is in a set
    doors.py refused ADDRESS PORT SOCKET        offers a connection as a library does that can't have it carried
    doors.py attack ADDRESS PORT SOCKET END     speaks to the daemon itself, and misuses what it gets until END exists"""

import ctypes
import fcntl
import mmap
import os
import re
import select
import socket
import struct
import sys
import threading
from pathlib import Path

ROUNDS = 3000
FORKS = 60
MESSAGE = struct.Struct("<I4B3Q")
OFFER, MATCHED, REFUSED, AGAIN, FILE, BELL = 1, 6, 8, 9, 13, 16
DOORS = 2
PAGE = 4096
# Of a direction in a connection's header.
DIRECTION, READY, ARMED = 256, 148, 192
BY_DOOR = 2
# Of a side in the first page.
DOOR, NEWS = 64, 8
FULL = 2**64 - 2


def serve(port):
    listener = socket.create_server(("", int(port)), backlog=128)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections = {}
    print("ready", flush=True)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection = listener.accept()[0]
                connection.setblocking(False)
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[number]
            try:
                data = connection.recv(65536)
                connection.send(data)
            except OSError:
                data = b""
            if not data:
                poll.unregister(connection)
                connections.pop(number).close()


def connect(address, port):
    connection = socket.create_connection((address, int(port)), 60)
    connection.settimeout(60)
    return connection


def echo(connection, message):
    connection.sendall(message)
    got = b""
    while len(got) < len(message):
        data = connection.recv(len(message) - len(got))
        assert data, "the connection has ended"
        got += data
    assert got == message


def call(address, port):
    connection = connect(address, port)
    for number in range(ROUNDS):
        echo(connection, number.to_bytes(4, "big"))
    print("done", flush=True)


def files(process):
    """Returns the files of memory that a process has mapped."""
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if re.search("memfd:viaduct-sockets", line)}


def fork(address, port):
    first = connect(address, port)
    echo(first, b"before")
    end, other = socket.socketpair()
    child = os.fork()
    if child == 0:
        other.recv(1)
        os._exit(0)
    second = connect(address, port)
    echo(second, b"after")
    echo(first, b"after")
    both = files("self"), files(child)
    assert len(both[0]) == 2 and len(both[1]) == 1 and both[1] < both[0], both
    end.send(b"!")
    os.waitpid(child, 0)
    print("done", flush=True)


def forks(address, port):
    # Where a fork would unmap something if it took nothing for a file.
    low, flags = 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    assert libc.mmap(ctypes.c_void_p(low), PAGE, mmap.PROT_READ, flags, -1, ctypes.c_long(0)) == low
    for _ in range(FORKS):
        connection = connect(address, port)
        echo(connection, b"before the fork")
        connection.close()
        child = os.fork()
        if child == 0:
            ctypes.string_at(low, 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    print("done", flush=True)


def closed():
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as poll:
        one = socket.create_connection(listener.getsockname())
        two = listener.accept()[0]
        poll.register(one, select.EPOLLIN | select.EPOLLOUT)
        for _ in range(8):
            one.send(b"x")
            two.recv(1)
        assert poll.poll(0)
        one.close()
        assert poll.poll(0) == []
        two.close()
    print("done", flush=True)


def match(connection, daemon):
    """Has the daemon give memory for a connection. Returns it, both bells, the side and the slot."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(daemon)
        offer = lambda: socket.send_fds(line, [MESSAGE.pack(1, OFFER, 0, DOORS, 0, 1, 0, 0)], [connection.fileno()])
        offer()
        bells, memory = {}, None
        while True:
            data, descriptors, _, _ = socket.recv_fds(line, MESSAGE.size, 4)
            assert data, "the daemon has ended"
            _, kind, second, slot, _, _, _, _ = MESSAGE.unpack(data)
            if kind == AGAIN:
                offer()
            elif kind == FILE:
                memory = mmap.mmap(descriptors[0], 17 * PAGE)
            elif kind == BELL:
                bells[slot] = descriptors[0]
            elif kind == MATCHED:
                # The daemon believes in the program as long as there is the line.
                return line.detach(), memory, bells[1], bells[0], second, slot
            else:
                sys.exit(f"message {data}")


def refused(address, port, daemon):
    connection = connect(address, port)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(daemon)
        socket.send_fds(line, [MESSAGE.pack(1, OFFER, 0, DOORS, 0, 1, 0, 0)], [connection.fileno()])
        assert line.recv(MESSAGE.size)[4] == REFUSED
    echo(connection, b"still there")
    print("done", flush=True)


def fill(bell):
    """Leaves no room in a bell, and has whoever writes or reads wait."""
    try:
        while True:
            os.write(bell, (FULL - (1 << 62)).to_bytes(8, sys.byteorder))
    except BlockingIOError:
        pass
    try:
        while True:
            os.write(bell, (1).to_bytes(8, sys.byteorder))
    except BlockingIOError:
        pass
    fcntl.fcntl(bell, fcntl.F_SETFL, fcntl.fcntl(bell, fcntl.F_GETFL) & ~os.O_NONBLOCK)


def attack(address, port, daemon, end):
    connection = connect(address, port)
    for number in range(8):
        echo(connection, bytes([number]))
    _line, memory, own, other, second, slot = match(connection, daemon)
    for bell in (own, other):
        fill(bell)
    read = slot * PAGE + (1 - second) * DIRECTION
    struct.pack_into("<I", memory, read + READY, 1)
    misuse = threading.Thread(target=ring, args=(memory, other, second, read), daemon=True)
    misuse.start()
    print("ready", flush=True)
    while not Path(end).exists():
        # The answers come by the ring, and nobody reads them there.
        connection.send(b"?")
        select.select([], [], [], 0.01)
    assert misuse.is_alive()
    print("done", flush=True)


def ring(memory, other, second, read):
    """Rings for all connections there could be, and says that this side sleeps and wants to be rung for."""
    victim = (1 - second) * DOOR
    news = bytes([255] * 32)
    while True:
        for _ in range(1000):
            memory[victim + NEWS : victim + NEWS + 32] = news
            struct.pack_into("<I", memory, second * DOOR, 1)
            struct.pack_into("<I", memory, read + ARMED, BY_DOOR)
        os.read(other, 8)


if __name__ == "__main__":
    PARTS = {
        "serve": serve,
        "call": call,
        "fork": fork,
        "forks": forks,
        "closed": closed,
        "refused": refused,
        "attack": attack,
    }
    PARTS[sys.argv[1]](*sys.argv[2:])
