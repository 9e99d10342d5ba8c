"""What goes wrong under a running host: ports that can't be opened, files that are wrong, changes that are refused,
a disk that is full or damaged. The rest goes on, and heals without a restart."""

import re
import signal

import pytest

from lab import Stream, eventually
from lab.shell import run
from lab.topology import SEATS, host_config, one_host, tap, tunnel_routes, vhost

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]


def reload(host):
    """Has the daemon take its file."""
    host.daemon.process.send_signal(signal.SIGHUP)


def vif(host, name):
    return next(row for row in host.viaduct("status")["vifs"] if row["name"] == name)


def warnings(host):
    """Returns the warnings of `viaduct status`: messages by object."""
    return {row["object"]: row["message"] for row in host.viaduct("status")["warnings"]}


def metric(host, name):
    """Reads a metric's lines, as [host] metrics = "127.0.0.1:9101" serves them."""
    text = host.namespace.run(["curl", "-s", "--max-time", "10", "http://127.0.0.1:9101/metrics"]).stdout
    return [line for line in text.splitlines() if line.startswith(name)]


# ------------------------------------------------------------------------------------------------------------ ports


def test_ports_that_cannot_be_opened_are_faults_of_theirs(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, metrics="127.0.0.1:9101")
    config.add("guest", name="v1", network="blue", mac="02:00:00:00:09:01", addresses=["10.1.1.91"],
               **vhost("v1", owner="no-such-user"))
    config.add("guest", name="v2", network="blue", mac="02:00:00:00:09:02", addresses=["10.1.1.92"], **vhost("v2"))
    lab.namespace("a").ip("link set lo up")
    host = lab.host(config, start=False)
    (host.run_dir / "v2.sock").write_text("a file in its place")
    host.start()
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    faults = {row["name"]: row.get("fault", "") for row in host.viaduct("status")["vifs"]}
    assert "find the device" in faults["up0"] and "no-such-user" in faults["v1"], faults
    assert "not a socket" in faults["v2"] and not faults["a1"], faults
    listed = {row["name"]: row.get("fault") for row in host.viaduct("guest") + host.viaduct("wire")}
    assert listed["up0"] == faults["up0"] and listed["v1"] == faults["v1"], listed
    assert len([line for line in metric(host, "viaduct_vif_fault{") if line.endswith(" 1")]) == 3
    assert "interface=\"up0\"" in host.daemon.text() and "will be tried again" in host.daemon.text()
    # It refuses no change of others.
    host.apply(config.copy().add("route", network="blue", prefix="10.9.0.0/16", to="drop"))
    (host.run_dir / "v2.sock").unlink()
    eventually(lambda: not vif(host, "v2").get("fault"), "the socket's place is free")
    assert (host.run_dir / "v2.sock").is_socket()


@pytest.mark.parametrize("driver", ["af-packet", "af-xdp"])
def test_a_wire_that_appears_goes_and_comes_back_works(lab, driver):
    def config_of(name, *guests):
        config = host_config(name, {guest: tap(guest) for guest in guests}, mtu=1500)
        config.entry("wire", "up0")["driver"] = driver
        return tunnel_routes(config, "mpls-over-udp", "b1" if name == "a" else "a1")

    def plug(name):
        # The same MAC each time: other hosts know it.
        lab.plug(name, mtu=1500, mac=f"02:00:00:00:ff:{ord(name):02x}")
        # See test_wire.py.
        lab.namespace("fabric").run(["ethtool", "-K", f"{name}-up0", "tx", "off", "txvlan", "off"])

    host = lab.host(config_of("a", "a1", "a2"))
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    assert vif(host, "up0")["fault"]
    plug("b")
    lab.container(lab.host(config_of("b", "b1")), "b1")
    plug("a")
    eventually(lambda: vif(host, "up0")["up"], "the wire is open")
    a1.expect_ping(B1.address)
    with Stream(a1.namespace, a2.namespace, A2.address, rate=500) as stream:
        for times in (1, 2):
            host.namespace.ip("link del up0")
            eventually(lambda: not vif(host, "up0")["up"], "it is gone")
            [wire] = host.viaduct("wire")
            assert "No such device" in wire["fault"] and wire["fault"] == vif(host, "up0")["fault"]
            assert "No such device" in host.call("status").stdout
            told = "the wire is down: device up0: No such device"
            eventually(lambda: host.daemon.text().count(told) == times, "a line in the log")
            stream.wait(100)
            plug("a")
            eventually(lambda: vif(host, "up0")["up"] and not vif(host, "up0").get("fault"), "it is back")
            a1.expect_ping(B1.address)
    assert stream.result().lost == 0, "no other guest notices"


# ------------------------------------------------------------------------------------------------------------ files


def test_an_edited_file_is_taken_by_a_reload_and_by_a_restart(lab):
    host, (a1,) = one_host(lab, "a1")
    host.call("rt", "add", "10.99.0.0/16", "--network", "blue", "--to", "drop")
    prefixes = lambda: {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}
    for prefix, take in (("10.98.0.0/16", reload), ("10.97.0.0/16", lambda host: (host.kill(), host.start()))):
        host.write(host.config.copy().add("route", network="blue", prefix=prefix, to="drop"))
        assert "differs" in warnings(host)[str(host.file)]
        assert prefix not in prefixes()
        take(host)
        eventually(lambda: prefix in prefixes(), "the file is in force")
        assert "10.99.0.0/16" in prefixes(), "what the API added stays"
        assert str(host.file) not in warnings(host)


def test_a_broken_file_leaves_what_runs_and_the_log_says_why(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    good = host.file.read_text()
    taken = good.replace('"tapa1"', '"lo"')
    for bad, why in (("[[guest\n", "line 1"), (taken, "can't be opened"), (None, "No such file")):
        host.file.unlink() if bad is None else host.file.write_text(bad)
        reload(host)
        last = lambda: [line for line in host.daemon.text().splitlines() if "is not taken" in line][-1:]
        eventually(lambda: why in host.daemon.text().split("is not taken")[-1], f"a line in the log: {why}")
        assert last()
        a1.expect_ping(A2.address)
        assert str(host.file) in warnings(host)
    host.file.write_text(good)
    reload(host)
    eventually(lambda: str(host.file) not in warnings(host), "all is well")
    for _ in range(200):
        reload(host)
    a1.expect_ping(A2.address)


# ------------------------------------------------------------------------------------------------- refused changes


def test_a_renamed_guest_does_not_take_a_tap_out_of_its_container(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    renamed = host.config.copy()
    renamed.entry("guest", "a1")["name"] = "z1"
    file = lab.directory / "renamed.toml"
    file.write_text(renamed.text())
    refused = host.call("apply", file, check=False)
    assert refused.returncode == 1 and "keep its name" in refused.stderr, refused
    a1.expect_ping(A2.address)


def test_a_refused_change_leaves_a_container_its_tap(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    bad = host.config.copy()
    bad.entry("guest", "a1")["queues"] = 2
    bad.entry("guest", "a2")["device"] = "other"
    bad.add("guest", name="v1", network="blue", mac="02:00:00:00:09:01", **vhost("v1", owner="no-such-user"))
    file = lab.directory / "bad.toml"
    file.write_text(bad.text())
    refused = host.call("apply", file, check=False)
    assert refused.returncode == 1 and "no-such-user" in refused.stderr, refused
    a1.expect_ping(A2.address)
    assert "other" not in host.namespace.run(["ip", "link"]).stdout
    told = [row for row in host.viaduct("diff", file) if row["what"] == "warning"]
    remade = {row["object"] for row in told if row["details"][0].startswith("recreates tap")}
    assert remade == {'guest "a1"', 'guest "a2"'}, told


def test_another_mac_or_mtu_is_given_to_the_tap_where_it_is(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    changed = host.config.copy()
    changed.entry("guest", "a1")["mac"] = "02:00:00:00:09:01"
    changed.add("guest", name="c3", network="blue", kind="tap", device="tapc3")
    host.apply(changed)
    assert not any(row["what"] == "warning" and "recreates" in str(row) for row in host.viaduct("diff", host.file))
    assert "02:00:00:00:09:01" in a1.run(["ip", "link", "show", a1.device]).stdout
    a1.run(["ip", "neigh", "flush", "all"])
    a1.expect_ping(A2.address)
    # The kernel takes an MTU in the device's own namespace only: here, and not in the container.
    for guest in ("a1", "c3"):
        changed.entry("guest", guest)["mtu"] = 1400
    told = host.apply(changed).stdout
    assert " mtu 1400 " in host.namespace.run(["ip", "link", "show", "tapc3"]).stdout
    mismatches = [line for line in told.splitlines() if "ip link set DEVICE mtu 1400" in line]
    assert len(mismatches) == 1 and 'guest "a1"' in mismatches[0], told


def test_a_new_guest_starts_to_count_anew(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    before = vif(host, "a2")
    assert before["rx_packets"] > 0
    host.apply(host.config.without("guest", name="a2"))
    config = host.config.copy()
    config.add("guest", name="new", network="blue", kind="tap", device="tapnew", mac="02:00:00:00:09:01",
               addresses=["10.1.1.9"])
    host.apply(config)
    new = vif(host, "new")
    assert new["id"] == before["id"] and new["rx_packets"] == 0 and new["tx_bytes"] < before["tx_bytes"], new


# -------------------------------------------------------------------------------------------------------- the store


@pytest.fixture
def small_disk(lab):
    """Mounts a file system of 64 KiB for the state of host a."""
    state = lab.directory / "a" / "state"
    state.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", state])
    lab.cleanup.callback(run, ["umount", "-l", state])
    return state


def test_a_full_disk_refuses_changes_until_it_has_room(lab, small_disk):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    host.call("rt", "add", "10.8.0.0/16", "--network", "blue", "--to", "drop")
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    wide = host.config.copy()
    for number in range(64):
        wide.add("route", network="blue", prefix=f"10.9.{number}.0/24", to="drop")
    file = lab.directory / "wide.toml"
    file.write_text(wide.text())
    with Stream(a1.namespace, a2.namespace, A2.address, rate=500) as stream:
        for _ in range(2):
            refused = host.call("apply", file, check=False)
            assert refused.returncode == 1 and "No space left" in refused.stderr, refused
        assert not any(row["prefix"].startswith("10.9.") for row in host.viaduct("rt", "--network", "blue"))
        assert "No space left" in warnings(host)["store"]
        host.call("rt", "del", "10.8.0.0/16", "--network", "blue")
        assert "No space left" in warnings(host)["store"]
        stream.wait(100)
        filler.unlink()
        host.call("apply", file)
        assert "store" not in warnings(host)
        stream.wait(100)
    assert stream.result().lost == 0
    host.kill()
    host.start()
    assert any(row["prefix"] == "10.9.63.0/24" for row in host.viaduct("rt", "--network", "blue"))


def test_a_host_starts_on_a_full_disk(lab, small_disk):
    with open(small_disk / "filler", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    host, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    assert "store" in warnings(host)
    (small_disk / "filler").unlink()
    eventually(lambda: "store" not in warnings(host), "what is in force is stored")
    host.call("rt", "add", "10.99.0.0/16", "--network", "blue", "--to", "drop")
    host.kill()
    host.start()
    assert "10.99.0.0/16" in {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}


def test_a_damaged_record_is_told_and_costs_nothing_else(lab):
    host, (a1,) = one_host(lab, "a1")
    for number in (1, 2, 3):
        host.call("rt", "add", f"10.{90 + number}.0.0/16", "--network", "blue", "--to", "drop")
    host.kill()
    store = max((host.directory / "state").glob("store.?"), key=lambda file: file.stat().st_size)
    text = store.read_bytes()
    assert text.count(b"10.92.0.0/16") == 1
    store.write_bytes(text.replace(b"10.92.0.0/16", b"10.29.0.0/16"))
    host.start()
    prefixes = {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}
    assert {"10.91.0.0/16", "10.93.0.0/16"} <= prefixes and "10.92.0.0/16" not in prefixes
    assert "damaged" in warnings(host)["store"]
    assert re.search(r"ERROR.*the store: .* bytes from .* damaged", host.daemon.text())
    assert b"10.29.0.0/16" in (host.directory / "state" / f"{store.name}.damaged").read_bytes()
    host.kill()
    host.start()
    assert "store" not in warnings(host), "it was written anew"


# -------------------------------------------------------------------------------------------------------------- links


def test_another_wire_takes_over_when_one_loses_its_link(lab):
    """Host a has two wires with a gateway each, and b is behind the router to which both lead."""
    router = lab.plug("router", "left", fabric="left")
    lab.plug("router", "right", fabric="right")
    lab.plug("router", "far", fabric="far")
    for device, address in (("left", "192.0.2.254"), ("right", "198.18.0.254"), ("far", "203.0.113.254")):
        router.ip(f"addr add {address}/24 dev {device}")
    router.sysctl("net.ipv4.ip_forward", 1)
    follower = {**tap("a2"), "link_follows": "up0"}
    a = host_config("a", {"a1": tap("a1"), "a2": follower}, wire=False, tunnel_source="192.0.2.1")
    for device, fabric, net in (("up0", "left", "192.0.2"), ("up1", "right", "198.18.0")):
        lab.plug("a", device, fabric=fabric)
        a.add("wire", name=device, driver="af-packet", device=device, addresses=[f"{net}.1/24"],
              gateway=f"{net}.254", mtu=9000)
    lab.plug("b", fabric="far")
    b = host_config("b", {"b1": tap("b1")}, wire=False, tunnel_source="203.0.113.2")
    b.add("wire", name="up0", driver="af-packet", device="up0", addresses=["203.0.113.2/24"],
          gateway="203.0.113.254", mtu=9000)
    for config, seat, remote in ((a, B1, "203.0.113.2"), (b, A1, "192.0.2.1")):
        hop = {"tunnel": "mpls-over-udp", "remote": remote, "label": seat.label}
        config.add("route", network="blue", prefix=f"{seat.address}/32", to=[hop])
    hosts = {config.name: lab.host(config) for config in (a, b)}
    a1, b1 = lab.container(hosts["a"], "a1"), lab.container(hosts["b"], "b1")
    a2 = lab.container(hosts["a"], "a2")
    carrier = lambda guest: guest.run(["cat", f"/sys/class/net/{guest.device}/carrier"]).stdout.strip()
    a1.expect_ping(B1.address)
    sent = lambda wire: vif(hosts["a"], wire)["tx_packets"]
    with Stream(a1.namespace, b1.namespace, B1.address, rate=1000, size=100) as stream:
        stream.wait(500)
        assert sent("up1") < 100 < sent("up0")
        lab.namespace("left").ip("link set a-up0 down")
        stream.wait(1000)
        assert sent("up1") > 500
        assert (carrier(a1), carrier(a2)) == ("1", "0"), "a2 follows the wire"
        lab.namespace("left").ip("link set a-up0 up")
        eventually(lambda: vif(hosts["a"], "up0")["up"], "the link is back")
        stream.wait(1000)
    eventually(lambda: carrier(a2) == "1", "a2 follows it again")
    print(f"{stream.result().lost} packets of a thousand a second were lost")
