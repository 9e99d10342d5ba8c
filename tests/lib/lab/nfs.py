"""NFS between virtual machines: by their kernels, over the network that they have from Viaduct."""

from .host import REPOSITORY
from .shell import Failed

# Unpacked there, so that no server starts on this machine.
TOOLS = REPOSITORY / ".cache/nfs/usr/sbin"
# An export needs a file system with handles: memory.
SERVE = """
modprobe nfsd && mount -t nfsd nfsd /system/proc/fs/nfsd &&
mkdir -p /system/run/exported /system/var/lib/nfs && cp -r /system{directory}/. /system/run/exported &&
mount -t tmpfs state /system/var/lib/nfs && mkdir /system/var/lib/nfs/v4recovery &&
touch /system/var/lib/nfs/etab /system/var/lib/nfs/rmtab &&
echo '/run/exported *(ro,fsid=0,no_subtree_check)' >/system/etc/exports &&
chroot /system {tools}/exportfs -r && chroot /system {tools}/rpc.mountd -N 2 -N 3 &&
chroot /system {tools}/rpc.nfsd -N 3 -V 4.2 2 && echo Y >/system/proc/fs/nfsd/v4_end_grace
"""
MOUNT = """
modprobe nfsv4 && mkdir -p /system{at} &&
chroot /system mount -i -t nfs4 -o ro,vers=4.2,addr={server},clientaddr={own} {server}:/ {at}
"""


def serve(vm, directory):
    """Has a machine export a copy of a directory of this one, for reading only."""
    if not TOOLS.exists():
        raise Failed(f"{TOOLS} is missing: run scripts/setup test")
    vm.shell(SERVE.format(directory=directory, tools=TOOLS))


def mount(vm, server, at):
    """Mounts what another machine exports."""
    vm.shell(MOUNT.format(at=at, server=server.entry["addresses"][0], own=vm.entry["addresses"][0]))
