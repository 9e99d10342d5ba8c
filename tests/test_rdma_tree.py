"""What programs look for in /sys and /dev before they ask the verbs library: `viaduct rdma tree`, mounted, and who
reads it."""

import re
import signal

import pytest

from lab import eventually, meet
from lab.host import REPOSITORY, binary
from lab.shell import Background, run
from lab.topology import SEATS, host_config, tap, verbs

MOUNTED = REPOSITORY / "dist/with-rdma-tree"
A1, A2 = SEATS["a1"], SEATS["a2"]


@pytest.fixture
def host(lab):
    """Starts a host with a container a1 with a verbs device, and a guest a2 with nothing else; both have IPv4 addresses
    alone."""
    guests = {"a1": {**tap("a1"), "rdma": "a1"}, "a2": verbs()}
    return lab.host(
        host_config(
            "a", {name: {**keys, "addresses": [SEATS[name].address]} for name, keys in guests.items()}, wire=False
        )
    )


@pytest.fixture
def trees(host, lab):
    """Writes a tree of each device, in a directory of its name."""
    for name in ("a1", "a2"):
        host.call("rdma", "tree", lab.directory / "trees" / name, name)
    return lab.directory / "trees"


def mapped(address):
    """Returns the GID of an IPv4 address, as the kernel writes it."""
    digits = [int(part) for part in address.split(".")]
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*digits)


def text(tree, path):
    return (tree / "class" / path).read_text().removesuffix("\n")


def test_a_tree_has_what_the_kernel_has_of_an_adapter(lab, host):
    tree = lab.directory / "tree"
    host.call("rdma", "tree", tree, "a2", "a1")
    port = "infiniband/viaduct1/ports/1"
    assert text(tree, f"{port}/gids/1") == mapped(A1.address)
    assert text(tree, f"{port}/gid_attrs/types/1") == "RoCE v2"
    assert text(tree, f"{port}/gid_attrs/ndevs/1") == "tapa1"
    assert text(tree, f"{port}/state") == "4: ACTIVE"
    assert text(tree, "infiniband/viaduct1/device/numa_node") == "-1"
    assert (tree / "class/infiniband/viaduct1/device/net/tapa1").readlink().name == "tapa1"
    # A guest without a tap has no network device.
    assert not (tree / "class/infiniband/viaduct0/ports/1/gid_attrs/ndevs").exists()
    assert text(tree, "infiniband_verbs/uverbs1/ibdev") == "viaduct1"
    assert text(tree, "infiniband_verbs/uverbs1/device/vendor") == "0xffff"
    refused = host.call("rdma", "tree", tree, "a3", check=False)
    assert refused.returncode == 1 and 'no verbs device "a3"' in refused.stderr


def test_a_tree_is_not_written_where_others_may_lead_it_elsewhere(lab, host):
    tree, elsewhere = lab.directory / "theirs", lab.directory / "elsewhere"
    elsewhere.write_text("kept")
    tree.mkdir()
    tree.chmod(0o777)
    refused = host.call("rdma", "tree", tree, "a1", check=False)
    assert refused.returncode == 1 and "others may write there" in refused.stderr
    tree.chmod(0o755)
    (tree / ".new").symlink_to(elsewhere)
    host.call("rdma", "tree", tree, "a1")
    assert elsewhere.read_text() == "kept"
    assert text(tree, "infiniband/viaduct0/node_desc") == "a1"


def test_names_are_those_of_the_library(lab, host):
    """Named or not, the tree's viaduct0 is the library's."""
    for names in (["a2", "a1"], []):
        tree = lab.directory / f"tree{len(names)}"
        host.call("rdma", "tree", tree, *names)
        device = lab.verbs(host, "a1")
        sockets = ":".join(str(host.run_dir / "rdma" / name) for name in names or ["a1", "a2"])
        program = device.start(["env", f"VIADUCT_RDMA={sockets}", "ibv_devices"])
        eventually(lambda: not program.running(), "ibv_devices' end")
        found = dict(re.findall(r"(viaduct\d)\s+([0-9a-f]{16})", program.text()))
        written = {
            path.name: text(tree, f"infiniband/{path.name}/node_guid").replace(":", "")
            for path in (tree / "class/infiniband").iterdir()
        }
        assert found == written and len(found) == 2


def test_the_shell_completes_devices(host):
    asks = ["env", "COMPLETE=bash", "_CLAP_COMPLETE_INDEX=3", "_CLAP_IFS= ", f"VIADUCT_RUN_DIR={host.run_dir}"]
    offered = run([*asks, binary("viaduct"), "--", "viaduct", "rdma", "show", ""]).stdout
    assert {"a1", "a2"} <= set(offered.split()), offered


def test_ibstat_shows_the_devices(trees):
    shown = run([MOUNTED, trees / "a1", "ibstat"]).stdout
    assert "CA 'viaduct0'" in shown and "State: Active" in shown and "Link layer: Ethernet" in shown, shown
    assert (
        run([MOUNTED, trees / "a1", "cat", "/sys/class/net/lo/mtu"]).stdout.strip().isdigit()
    ), "other classes are there"


def by_tree(trees, *words):
    """Returns a command by which a program finds the tree of its device."""
    return ["bash", "-c", 'exec "$0" "$1/${VIADUCT_RDMA##*/}" "${@:2}"', MOUNTED, trees, *words]


def test_ucx_finds_roce_v2_by_itself(lab, host, trees):
    """UCX, which is given no GID's index, reads which GIDs are of RoCE v2, and takes that of IPv4."""
    program = lab.verbs(host, "a1").start(by_tree(trees, "env", "UCX_LOG_LEVEL=debug", "ucx_info", "-d"))
    eventually(lambda: not program.running(), "ucx_info's end")
    shown = program.text()
    assert re.search(r"Transport: rc_verbs\s+#\s+Device: viaduct0:1", shown), shown
    assert re.search(r"Transport: ud_verbs\s+#\s+Device: viaduct0:1", shown), shown
    assert "viaduct0:1 using gid_index 0" in shown
    # The network device, by the GID's attribute.
    assert "viaduct0:1 (tapa1)" in shown


@pytest.mark.parametrize("transport", ["ud_verbs", "rc_verbs"])
def test_ucx_talks_over_ipv4(lab, host, trees, transport):
    devices = [lab.verbs(host, name) for name in ("a1", "a2")]
    words = ["ucx_perftest", "-d", "viaduct0:1", "-x", transport, "-t", "am_lat", "-n", "100", "-w", "10"]
    assert "Final:" in meet(*devices, *by_tree(trees, *words))


def test_a_mounted_tree_follows(lab, host):
    """Addresses and devices come and go; programs that have the tree mounted see it, whatever becomes of the
    daemon."""
    tree = lab.directory / "tree"
    following = host.background("rdma", "tree", "--follow", tree, "a1", "a2", label="follow")
    eventually(lambda: (tree / "class/infiniband_verbs/uverbs1/dev").exists(), "the tree")
    mounted = Background([str(MOUNTED), str(tree), "sleep", "infinity"], lab.directory / "mounted.log")

    def seen(path):
        found = run(
            ["nsenter", "--mount", f"--target={mounted.process.pid}", "cat", f"/sys/class/{path}"], check=False
        )
        return found.stdout.removesuffix("\n") if found.returncode == 0 else None

    gid = "infiniband/viaduct1/ports/1/gids/{}".format
    eventually(lambda: seen(gid(1)) == mapped(A2.address), "the mount")
    config = host.config.copy()
    config.entry("guest", "a2")["addresses"] = ["10.1.1.7", "fd00:1::7"]
    host.apply(config)
    eventually(
        lambda: (seen(gid(1)), seen(gid(2))) == (mapped("10.1.1.7"), "fd00:0001:0000:0000:0000:0000:0000:0007"),
        "new GIDs",
    )
    host.kill()
    host.start()
    config.entry("guest", "a2")["addresses"] = ["10.1.1.8"]
    host.apply(config)
    eventually(lambda: (seen(gid(1)), seen(gid(3))) == (mapped("10.1.1.8"), None), "GIDs of the next daemon")
    host.apply(config.without("guest", name="a1"))
    eventually(lambda: seen("infiniband/viaduct0/node_type") is None, "the end of a1")
    assert seen("infiniband/viaduct1/node_type") == "1: CA"
    assert following.running()
    for program in (following, mounted):
        program.stop(signal.SIGKILL)
