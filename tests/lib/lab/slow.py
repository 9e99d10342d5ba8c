"""Memory whose pages never arrive: that of a file in a file system (FUSE) that does not answer."""

import ctypes
import mmap
import os
import signal
import struct

PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# From linux/fuse.h.
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 27, 36, 42
# The inode number of the only file; any other is the directory.
FILE = 2
PR_SET_PDEATHSIG = 1


class SlowMemory:
    """Pages that exist at first. After `lose`, a thread that touches one waits as long as this process lives."""

    def __init__(self, directory, length=16 * PAGE):
        self.length = length
        self.is_lost = mmap.mmap(-1, 1)  # shared with the process that serves
        device = os.open("/dev/fuse", os.O_RDWR)
        os.makedirs(directory)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"slow", os.fsencode(directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), f"mount of {directory}")
        if os.fork() == 0:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self._serve(device)
        # Only the child has it now: the file system ends with the child, and waiting threads get an error.
        os.close(device)
        self.file = os.open(f"{directory}/file", os.O_RDONLY)
        self.address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, self.file, 0)

    def lose(self):
        """Takes the existing pages away; from now on no page arrives."""
        self.is_lost[0] = 1
        _libc.madvise(self.address, self.length, mmap.MADV_DONTNEED)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _serve(self, device):
        def answer(unique, body=b""):
            os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

        while True:
            request = os.read(device, 1 << 17)
            opcode, unique, node = struct.unpack_from("<IQQ", request, 4)
            if opcode == READ and self.is_lost[0]:
                continue
            if opcode == READ:
                answer(unique, bytes(struct.unpack_from("<I", request, 56)[0]))
            elif opcode == LOOKUP:
                answer(unique, struct.pack("<5Q", FILE, 0, 1000, 1000, 0) + self._attributes(FILE))
            elif opcode == GETATTR:
                answer(unique, struct.pack("<2Q", 1000, 0) + self._attributes(node))
            elif opcode == INIT:
                answer(unique, struct.pack("<7I", 7, 31, 0, 0, 0, PAGE, 1).ljust(64, b"\0"))
            elif opcode in (OPEN, OPENDIR):
                answer(unique, bytes(16))
            elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
                answer(unique)

    def _attributes(self, node):
        """Returns a `struct fuse_attr`."""
        mode, size = (0o100600, self.length) if node == FILE else (0o040755, 0)
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)
