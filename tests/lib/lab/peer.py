"""A verbs program in Python with one reliable connection to another one, which it finds by files in a directory."""

import json
import os
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from .shell import eventually

PORT, INDEX = 1, 1
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Peer:
    """One end of the connection, with one memory region."""

    def __init__(self, length, address=None, context=None):
        self.context = context or Context(name="viaduct0")
        pd, self.cq = PD(self.context), CQ(self.context, 16)
        self.length = length
        self.region = MR(pd, length, ACCESS, address=address) if address else MR(pd, length, ACCESS)
        capacity = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity))

    def connect(self, directory, name, other):
        """Returns when both have introduced themselves and this one is ready to send."""
        own = [str(self.context.query_gid(PORT, INDEX)), self.qp.qp_num, self.region.buf, self.region.rkey]
        draft = Path(directory, f"{name}.draft")
        draft.write_text(json.dumps(own))
        os.rename(draft, Path(directory, name))
        file = Path(directory, other)
        eventually(file.exists, f"the program {other}")
        gid, number, self.remote, self.key = json.loads(file.read_text())
        way = GlobalRoute(dgid=GID(gid), sgid_index=INDEX)
        wanted = QPAttr(port_num=PORT)
        wanted.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=way)
        wanted.dest_qp_num, wanted.path_mtu, wanted.qp_access_flags = number, e.IBV_MTU_1024, ACCESS
        wanted.max_rd_atomic = wanted.max_dest_rd_atomic = wanted.min_rnr_timer = 1
        wanted.timeout, wanted.retry_cnt, wanted.rnr_retry = 14, 7, 7
        self.qp.to_rts(wanted)

    def write(self, data):
        """Writes to the beginning of the other's memory; returns the completion's status."""
        self.region.write(data, len(data))
        return self.post(e.IBV_WR_RDMA_WRITE, len(data))

    def post(self, opcode, length):
        """Transfers this many bytes between both regions; returns the completion's status."""
        piece = SGE(self.region.buf, length, self.region.lkey)
        work = SendWR(num_sge=1, sg=[piece], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        work.set_wr_rdma(self.key, self.remote)
        self.qp.post_send(work)
        return eventually(lambda: self.cq.poll(1)[1], "a completion", 120, 0.001)[0].status
