"""Large TCP frames, and the kinds of rings."""

from ..generator import Traffic
from ..scenario import Scenario
from . import Case, Point, point
from .throughput import one_way

ORDER = 6
LARGE = 65_000


@point
class Segmentation(Point):
    name = "segmentation"
    title = "TCP frames of 64 KB between guests (TSO)"
    about = (
        "The sender asks for segmentation, the receiver takes large frames: nobody needs to cut. OVS runs with "
        "userspace-tso-enable."
    )
    metric = "gbps"

    def cases(self, quick):
        stream = {"tx": 0, "rx": 1, "size": LARGE, "tcp": True, "segment": 1448}
        traffic = Traffic(streams=[stream], segmentation=True, queue_size=256, memory=1024)
        yield Case({"size": LARGE}, ["viaduct", "ovs-normal"], Scenario(segmentation=True), traffic)


RINGS = {
    "split": "mrg_rxbuf=0,in_order=0",
    "split mergeable": "mrg_rxbuf=1,in_order=0",
    "split in-order": "mrg_rxbuf=0,in_order=1",
    "split vectorised": "mrg_rxbuf=0,in_order=0,vectorized=1",
    "packed": "packed_vq=1,mrg_rxbuf=0,in_order=0",
    "packed mergeable": "packed_vq=1,mrg_rxbuf=1,in_order=0",
    "packed in-order": "packed_vq=1,mrg_rxbuf=0,in_order=1",
}


@point
class Rings(Point):
    name = "rings"
    title = "Kinds of rings, 64 bytes"
    about = (
        "What the guests' driver was given; the device may not offer in-order or packed rings, and then they are not "
        "used."
    )
    over = "ring"

    def cases(self, quick):
        for name in ["packed"] if quick else RINGS:
            traffic = one_way()
            traffic.ring = RINGS[name]
            yield Case({"ring": name}, ["viaduct"] if quick else ["viaduct", "testpmd", "ovs-port"], traffic=traffic)
