#!/usr/bin/env python3
"""Lists the objects of a host, then prints a line of JSON for each that changes. docs/api.md says how to generate
the client.

Usage: watch.py SOCKET
"""

import json
import sys

import grpc
import viaduct_pb2 as api
import viaduct_pb2_grpc


def main():
    socket = sys.argv[1]
    client = viaduct_pb2_grpc.ViaductStub(grpc.insecure_channel(f"unix:{socket}"))
    while True:
        parts = list(client.StreamObjects(api.ObjectsRequest()))
        count, revision = sum(len(part.objects) for part in parts), parts[0].revision
        print(f"{count} objects at revision {revision}")
        for news in client.Watch(api.WatchRequest(revision=revision)):
            if news.resync:
                break
            for difference in news.differences:
                what = "set" if difference.HasField("object") else "gone"
                kind = api.Kind.Name(difference.key.kind)
                print(json.dumps({"revision": news.revision, "what": what, "kind": kind, "name": difference.key.name}))


if __name__ == "__main__":
    main()
