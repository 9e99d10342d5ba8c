#!/usr/bin/python3
"""Attaches a container to a network by Viaduct's API, waits until it can send, shows it, and takes it away at the end.

    attach.py SOCKET NETWORK NAME ADDRESS

The interface NAME appears in this network namespace; move it to where it is wanted. viaduct_pb2 and viaduct_pb2_grpc
are made of viaduct.proto (docs/api.md)."""

import sys
import time
import uuid

import grpc
import viaduct_pb2 as api
from viaduct_pb2_grpc import ViaductStub


def connect(socket):
    # The name in requests: a path is not one that HTTP/2 servers take.
    channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "viaduct")])
    return ViaductStub(channel)


def interface(viaduct, name):
    vifs = viaduct.Table(api.TableRequest(table=api.TABLE_NAME_VIF), timeout=10).vifs
    return next(vif for vif in vifs if vif.name == name)


def transact(viaduct, **step):
    """Carries out one step. Whoever gets no answer may repeat the request: its id keeps it from being carried out
    twice."""
    request = api.TransactRequest(operations=[api.Operation(**step)], request_id=str(uuid.uuid4()))
    return viaduct.Transact(request, timeout=10)


def main(socket, network, name, address):
    viaduct = connect(socket)
    guest = api.Guest(name=name, network=network, kind="tap", device=name, mac="02:00:00:00:0a:01", addresses=[address])
    try:
        changes = transact(viaduct, create=api.Object(guest=guest))
    except grpc.RpcError as refused:
        sys.exit(f"{refused.code().name}: {refused.details()}")
    for change in changes.changes:
        print(change.what, change.object)
    while not (vif := interface(viaduct, name)).up:
        time.sleep(0.1)
    print(f"{vif.name} is up, MAC {vif.mac}, MTU {vif.mtu}: press Enter to remove it", flush=True)
    sys.stdin.readline()
    vif = interface(viaduct, name)
    print(f"{vif.rx_packets} packets from it, {vif.tx_packets} to it")
    key = api.Key(kind=api.KIND_GUEST, name=name)
    transact(viaduct, delete=api.Delete(key=key, allow_missing=True))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
