"""A guest that runs RoCEv2 itself, next to one with a verbs device."""

from .topology import SEATS, host_config, tap, vhost
from .verbs import Verbs
from .vm import RDMA_IMAGES


def guests(lab):
    """Starts a VM, a1, with rxe0, and the verbs device of a container, a2, in whose namespace the programs' TCP finds
    the VM."""
    host = lab.host(host_config("a", {"a1": vhost("a1"), "a2": {**tap("a2"), "rdma": "a2"}}, wire=False))
    vm = lab.vm(host, "a1", images=RDMA_IMAGES, memory="256M")
    container = lab.container(host, "a2")
    vm.boot()
    vm.shell("modprobe crc32_generic; modprobe rdma_rxe && modprobe ib_uverbs && modprobe rdma_ucm")
    vm.shell("/bin/rdma link add rxe0 type rxe netdev eth0")
    vm.shell("ulimit -l unlimited")
    vm.expect_ping(SEATS["a2"].address)
    return vm, Verbs(container.namespace, host, "a2", lab.directory)
