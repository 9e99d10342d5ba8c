"""Tables change under traffic, and nothing is lost by it."""

import threading

from lab import Stream
from lab.topology import SEATS, one_host, tunnel_routes, two_hosts

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]
CHANGES = 5000


def routed(config, number):
    """Returns the configuration with one of two different sets of routes beside those that the traffic uses."""
    changed = config.copy()
    for index in range(CHANGES):
        changed.add("route", network="blue", prefix=f"10.{100 + number}.{index // 250}.{index % 250}/32", to="drop")
    return changed


def stream_with(stream, work):
    """Runs a stream with `work` beside it; returns what became of the stream."""
    with stream:
        stream.wait(500)
        work(stream)
    return stream.result()


def test_route_changes_lose_nothing(lab):
    """Changes lose no more than a control without changes, interleaved with them, so that a busy machine shows in
    both."""
    hosts, guests = two_hosts(lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes))
    a1, b1, host = guests["a1"], guests["b1"], hosts["a"]
    a1.expect_ping(B1.address)
    base = host.config
    files = []
    for number in (0, 1):
        file = lab.directory / f"routes-{number}.toml"
        file.write_text(routed(base, number).text())
        files.append(file)

    def churn(stream):
        for turn in range(4):
            host.call("apply", files[turn % 2])

    lost = {"control": 0, "churn": 0}
    for turn in range(2):
        for name, work in (("control", lambda stream: stream.wait(2000)), ("churn", churn)):
            port = 7100 + turn * 2 + (name == "churn")
            result = stream_with(Stream(a1.namespace, b1.namespace, B1.address, port=port), work)
            assert result.received > 500
            lost[name] += result.lost
    assert lost["churn"] <= lost["control"], lost


def test_other_guests_coming_and_going_lose_nothing(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    base = host.config
    more = base.copy()
    for number in range(20):
        more.add("guest", name=f"x{number}", network="blue", kind="vhost", socket=f"x{number}.sock",
                 mac=f"02:00:00:00:09:{number:02x}", addresses=[f"10.1.1.{100 + number}"])

    def churn(stream):
        for turn in range(6):
            host.apply(base if turn % 2 else more)

    assert stream_with(Stream(a1.namespace, a2.namespace, A2.address), churn).lost == 0


def test_lists_and_metrics_lose_nothing(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    host.apply(routed(host.config, 0))
    a1.expect_ping(A2.address)

    def readers(stream):
        threads = [threading.Thread(target=host.call, args=words) for words in
                   (("rt", "--network", "blue"), ("flow",), ("stats",), ("dropstats",), ("status",)) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert stream_with(Stream(a1.namespace, a2.namespace, A2.address), readers).lost == 0
