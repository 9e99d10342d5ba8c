"""Changes in place, confirmed changes, the way back, and watching."""

import contextlib
import itertools
import json
import sys
import threading

import grpc
import pytest

from lab import eventually
from lab.host import REPOSITORY
from lab.shell import run
from lab.topology import SEATS, host_config, one_host, tap

A1, A2 = SEATS["a1"], SEATS["a2"]


@pytest.fixture
def host(lab):
    made, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    made.a1, made.a2 = a1, a2
    return made


def revision(host):
    return host.viaduct("log")[-1]["revision"]


def test_a_guest_of_the_api_changes_in_its_container(host, lab):
    mac = "02:00:00:00:00:77"
    host.call("guest", "add", "web", "--kind", "tap", "--device", "tweb", "--mac", mac, "--address", "10.1.1.77")
    inside = lab.namespace("web")
    host.namespace.ip("link set tweb netns", inside.name)
    inside.ip("link set tweb address", mac)
    inside.ip("addr add 10.1.1.77/24 dev tweb")
    inside.ip("link set tweb up")
    host.a1.expect_ping("10.1.1.77")
    host.call("guest", "set", "web", "addresses=10.1.1.78", "rate={ mbps = 100 }")
    inside.ip("addr add 10.1.1.78/24 dev tweb")
    host.a1.expect_ping("10.1.1.78")
    inside.ip("addr del 10.1.1.77/24 dev tweb")
    shown = host.viaduct("guest", "show", "web")
    assert shown["addresses"] == ["10.1.1.78"] and shown["rate"]["mbps"] == 100 and shown["state"] == "up"
    # What belongs to the file needs a word more.
    refused = host.call("guest", "set", "a1", "rate={ mbps = 100 }", check=False)
    assert refused.returncode == 1 and "host's file" in refused.stderr
    host.call("guest", "set", "a1", "rate={ mbps = 100 }", "--take-over")
    assert host.viaduct("guest", "show", "a1")["owner"] == "api"
    host.a1.expect_ping(A2.address)
    wrong = host.call("guest", "set", "web", "mtuu=1400", check=False)
    assert wrong.returncode == 2 and 'did you mean "mtu"' in wrong.stderr


def test_a_change_that_cuts_off_its_author_is_undone(host):
    cut = host.config.copy()
    cut.add("rule", network="blue", priority=1, action="drop")
    said = host.call("apply", "--confirm", "5", host.write(cut)).stdout
    assert "viaduct confirm" in said
    host.a1.namespace.background(["ping", "-i", "0.2", A2.address], "ping")
    eventually(lambda: host.drops().get("rule_drop"), "the rule's drops")
    assert "unless confirmed" in host.call("log").stdout
    eventually(lambda: host.viaduct("log")[-1]["request"] == "unconfirmed", "the change is undone")
    host.a1.expect_ping(A2.address)
    assert host.viaduct("rule") == []
    host.call("apply", "--confirm", "1000", host.write(cut))
    host.call("confirm")
    assert len(host.viaduct("rule")) == 1
    # What is not confirmed does not outlive the daemon that was to undo it.
    host.call("rule", "set", str(host.viaduct("rule")[0]["id"]), "action=allow", "--take-over", "--confirm", "1000")
    host.replace()
    assert [rule["action"] for rule in host.viaduct("rule")] == ["drop"]


def test_an_edited_file_changes_only_if_the_daemon_takes_it(host, tmp_path, monkeypatch):
    file = tmp_path / "host.toml"
    link = tmp_path / "link.toml"
    file.write_text("# By hand.\n" + host.config.text())
    file.chmod(0o640)
    link.symlink_to("host.toml")

    def edit(script, check=True):
        monkeypatch.setenv("EDITOR", f"sed -i {script}")
        return host.call("edit", str(link), check=check)

    assert "changed nothing" in edit("s/nothing/at-all/").stdout
    assert "network \"blue\"" in edit("'s/^vrf = 1$/vrf = 7/'").stdout
    assert host.viaduct("network", "show", "blue")["vrf"] == 7
    text = file.read_text()
    assert text.startswith("# By hand.") and "vrf = 7" in text and link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    # What is refused stays beside the file, which stays as it is.
    refused = edit("'s/^vrf = 7$/vrf = 70000/'", check=False)
    assert refused.returncode == 1 and "70000" in refused.stderr and file.read_text() == text
    kept = refused.stderr.strip().rsplit(" ", 1)[1]
    assert "vrf = 70000" in open(kept).read()
    assert edit("'s/7/8/' /dev/null; false", check=False).returncode == 1
    assert file.read_text() == text and host.viaduct("network", "show", "blue")["vrf"] == 7


def test_what_is_undone_after_an_edit_stays_undone(host, monkeypatch):
    monkeypatch.setenv("EDITOR", "sed -i '/^name = \"blue\"/a mtu = 1300'")
    host.call("edit", "--confirm", "1", str(host.file))
    eventually(lambda: host.viaduct("log")[-1]["request"] == "unconfirmed", "the change is undone")
    mtu = host.viaduct("network", "show", "blue")["mtu"]
    assert mtu != 1300 and "mtu = 1300" in host.file.read_text()
    host.config.entry("network", "blue")["mtu"] = 1300
    host.kill()
    host.start()
    assert host.viaduct("network", "show", "blue")["mtu"] == mtu


def test_rollback_returns_to_any_revision(host):
    start = revision(host)
    host.call("rt", "add", "10.7.0.0/16", "--to", "drop")
    host.call("network", "set", "blue", "mtu=1400", "--take-over")
    assert [entry["request"] for entry in host.viaduct("log")[-2:]] == ["transact", "transact"]
    host.call("rollback")
    assert host.viaduct("network", "show", "blue")["owner"] == "file"
    host.call("rollback", str(start))
    assert "10.7.0.0/16" not in [route["prefix"] for route in host.viaduct("rt")]
    assert revision(host) == start + 4
    unknown = host.call("rollback", str(start + 99), check=False)
    assert unknown.returncode == 1 and f"to {start + 4}" in unknown.stderr


def test_the_way_back_and_rules_numbers_outlive_the_daemon(host):
    start = revision(host)
    for port in (80, 81, 82):
        words = ["--network", "blue", "--priority", "5", "--protocol", "tcp", "--ports", str(port), "--action", "drop"]
        host.call("rule", "add", *words)
    ids = {rule["ports"]: rule["id"] for rule in host.viaduct("rule")}
    host.call("rule", "del", str(ids["80"]))
    changes = host.viaduct("log")
    for begin_anew in (host.replace, lambda: (host.kill(), host.start())):
        begin_anew()
        assert host.viaduct("log") == changes
        assert {rule["ports"]: rule["id"] for rule in host.viaduct("rule")} == {p: ids[p] for p in ("81", "82")}
    host.call("rule", "del", str(ids["81"]))
    assert [rule["ports"] for rule in host.viaduct("rule")] == ["82"]
    host.call("rollback", str(start + 2))
    assert {rule["ports"] for rule in host.viaduct("rule")} == {"80", "81"}


def generated(lab):
    """Returns the directory of a client in Python."""
    made = lab.directory / "client"
    made.mkdir()
    run(["protoc", "-I", REPOSITORY / "crates/api/proto", f"--python_out={made}", f"--grpc_out={made}",
         "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin", "viaduct.proto"])
    return made


def test_what_many_clients_were_told_outlives_a_kill(host, lab, monkeypatch):
    """Sixteen clients add one route after the other until the daemon is killed."""
    monkeypatch.syspath_prepend(str(generated(lab)))
    import viaduct_pb2 as api
    from viaduct_pb2_grpc import ViaductStub

    told = []
    options = [("grpc.default_authority", "viaduct"), ("grpc.use_local_subchannel_pool", 1)]

    def client(number):
        stub = ViaductStub(grpc.insecure_channel(f"unix:{host.run_dir}/viaduct.sock", options=options))
        with contextlib.suppress(grpc.RpcError):
            for n in itertools.count():
                prefix = f"10.{100 + number}.{n >> 8}.{n & 255}/32"
                route = api.Route(network="blue", prefix=prefix, to=[api.Target(drop=True)])
                reply = stub.Add(api.AddRequest(objects=[api.Object(route=route)]))
                told.append((reply.revision, prefix))

    before = revision(host)
    clients = [threading.Thread(target=client, args=[number]) for number in range(16)]
    for one in clients:
        one.start()
    eventually(lambda: len(told) >= 500, "500 answers")
    host.kill()
    for one in clients:
        one.join()
    host.start()
    revisions = [number for number, _ in told]
    assert len(set(revisions)) == len(told), "each has a revision of its own"
    assert max(revisions) <= revision(host) <= before + len(told) + len(clients)
    present = {row["prefix"] for row in host.viaduct("rt")}
    assert {prefix for _, prefix in told} <= present


def test_a_client_in_python_changes_and_watches(host, lab):
    client = generated(lab)
    watching = host.namespace.background(
        ["env", f"PYTHONPATH={client}", sys.executable, "-u", REPOSITORY / "examples/watch.py",
         host.run_dir / "viaduct.sock"], "watch")
    watching.wait_for("revision")
    host.call("rt", "add", "10.7.0.0/16", "--to", "drop")
    host.call("rt", "del", "10.7.0.0/16")
    lines = lambda: [json.loads(line) for line in watching.text().splitlines() if line.startswith("{")]
    eventually(lambda: len(lines()) >= 2, "both changes")
    assert [line["what"] for line in lines()] == ["set", "gone"]
    assert {line["name"] for line in lines()} == {"10.7.0.0/16"}
    watching.stop()


def test_owners_have_what_they_sent(lab, monkeypatch):
    """Each owner has the objects of its file, or those of its resync, over the daemon's death; the others stay."""
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False, owners=["jobs", "agent:1000"]))
    jobs = lab.directory / "jobs.toml"

    def write(*prefixes):
        route = '[[route]]\nnetwork = "blue"\nprefix = "{}"\nto = "drop"\n'
        jobs.write_text("".join(route.format(prefix) for prefix in prefixes))
        return jobs

    def of(owner):
        return {row["prefix"] for row in host.viaduct("rt") if row["owner"] == owner}

    host.call("rt", "add", "10.7.0.0/16", "--to", "drop")
    host.call("--as", "jobs", "apply", write("10.8.1.0/24", "10.8.2.0/24"))
    tried = host.call("--as", "jobs", "apply", "--dry-run", write("10.8.2.0/24", "10.8.3.0/24"))
    assert "2 objects would change" in tried.stdout and of("jobs") == {"10.8.1.0/24", "10.8.2.0/24"}
    host.call("apply", "--as", "jobs", jobs)
    assert (of("jobs"), of("api")) == ({"10.8.2.0/24", "10.8.3.0/24"}, {"10.7.0.0/16"})
    refused = host.call("rt", "del", "10.8.2.0/24", check=False)
    assert refused.returncode == 1 and "belongs to jobs" in refused.stderr
    host.call("rt", "del", "10.8.2.0/24", "--take-over")
    for words, why in [(["--as", "nobody", "apply", jobs], "add it to `owners`"),
                       (["--as", "jobs", "apply", host.file], "belongs to the host's file")]:
        refused = host.call(*words, check=False)
        assert refused.returncode == 1 and why in refused.stderr, refused

    monkeypatch.syspath_prepend(str(generated(lab)))
    import viaduct_pb2 as api
    from viaduct_pb2_grpc import ViaductStub

    options = [("grpc.default_authority", "viaduct"), ("grpc.use_local_subchannel_pool", 1)]
    stub = lambda: ViaductStub(grpc.insecure_channel(f"unix:{host.run_dir}/viaduct.sock", options=options))
    put = lambda prefix: api.Operation(put=api.Object(route=api.Route(
        network="blue", prefix=prefix, to=[api.Target(drop=True)])))
    send = lambda prefix, **more: api.TransactRequest(operations=[put(prefix)], owner="agent", **more)
    client = stub()
    for number in range(3):
        client.Transact(send(f"10.9.{number}.0/24"))
    resync = client.BeginResync(api.BeginResyncRequest(owner="agent")).resync
    client.Transact(send("10.9.0.0/24", resync=resync))
    host.kill()
    host.start()
    client = stub()
    with pytest.raises(grpc.RpcError) as gone:
        client.Transact(send("10.9.1.0/24", resync=resync, end_resync=True))
    assert gone.value.code() == grpc.StatusCode.NOT_FOUND and "BeginResync again" in gone.value.details()
    assert of("agent") == {"10.9.0.0/24", "10.9.1.0/24", "10.9.2.0/24"}
    resync = client.BeginResync(api.BeginResyncRequest(owner="agent")).resync
    client.Transact(send("10.9.2.0/24", resync=resync))
    client.Transact(send("10.9.4.0/24", resync=resync, end_resync=True))
    assert of("agent") == {"10.9.2.0/24", "10.9.4.0/24"}
    # The agent dies in the middle, and its time passes.
    resync = client.BeginResync(api.BeginResyncRequest(owner="agent", seconds=1)).resync
    client.Transact(send("10.9.4.0/24", resync=resync))
    eventually(lambda: of("agent") == {"10.9.4.0/24"}, "what was not sent is gone")
    assert (of("jobs"), of("api")) == ({"10.8.3.0/24"}, {"10.7.0.0/16"})
