"""`viaduct doctor` on real hosts: what it says of a good one, and of each thing that is wrong with another."""

import json

from lab import binary
from lab.shell import run
from lab.topology import host_config, tap, vhost


def doctor(host):
    """Runs `viaduct doctor`; returns its exit status and its findings, by check."""
    command = [binary("viaduct"), "--run-dir", host.run_dir, "--json", "doctor", host.write()]
    done = run(host.namespace.words(command), check=False)
    findings = {}
    for finding in json.loads(done.stdout):
        assert (finding["level"] == "good") == ("advice" not in finding), finding
        findings.setdefault(finding["check"], []).append(finding)
    return done.returncode, findings


def broken(findings):
    return [one["message"] for check in findings.values() for one in check if one["level"] == "broken"]


def test_a_good_host(lab):
    lab.plug("a")
    status, found = doctor(lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2")}), start=False))
    assert status == 0 and not broken(found), found
    assert {"file", "capabilities", "user", "sandbox", "kernel", "af-xdp", "clock", "workers", "hugepages", "kvm",
            "tun", "wire", "mtu", "libvirt"} <= set(found)


def test_windows_want_memory(lab):
    guest = vhost("a1", rdma="a1", window_mb=64, rdma_trust="t")
    host = lab.host(host_config("a", {"a1": guest}, wire=False), start=False)
    directory = host.run_dir / "rdma/vm"
    directory.mkdir(parents=True)
    mount = lambda *options: run(["mount", "-t", "tmpfs", "-o", ",".join(options), "windows", directory])
    lab.cleanup.callback(lambda: run(["umount", "--lazy", directory], check=False))
    for size, level in (("200M", "good"), ("100M", "warning"), ("32M", "broken")):
        mount("mode=755", f"size={size}")
        status, found = doctor(host)
        assert [one["level"] for one in found["windows"]] == [level], found["windows"]
        assert status == (level == "broken") and "vsock" in found, found
        # It says what to do.
        if level != "good":
            assert f"remount,size=128M {directory}" in found["windows"][0]["advice"]
        run(["umount", directory])
    # Others have files there.
    mount("mode=755", "size=200M")
    (directory / "others").mkdir()
    (directory / "others/file").write_bytes(bytes(100 << 20))
    _, found = doctor(host)
    assert found["windows"][0]["level"] == "warning", found["windows"]
    assert f"remount,size=228M {directory}" in found["windows"][0]["advice"], found["windows"]


def test_what_is_wrong_with_a_wire(lab):
    lab.plug("a", mtu=1500)
    host = lab.host(host_config("a", {"a1": tap("a1")}, mtu=9000), start=False)
    host.namespace.ip("addr add 192.0.2.1/24 dev up0")
    host.namespace.run(["ethtool", "-K", "up0", "tx", "off"])
    status, found = doctor(host)
    assert status == 1 and len(broken(found)) == 2, found
    said = " ".join(one["message"] + one.get("advice", "") for one in found["wire"])
    for part in ("ip link set up0 mtu 9000", "ip addr del 192.0.2.1/24 dev up0", "tx-checksumming on"):
        assert part in said
    host.namespace.ip("link set up0 down")
    assert "ip link set up0 up" in str(doctor(host)[1]["wire"])
    host.namespace.ip("link del up0")
    assert 'no device "up0"' in str(doctor(host)[1]["wire"])


def test_a_worker_without_a_cpu_is_an_error_of_the_file(lab):
    host = lab.host(host_config("a", {}, wire=False, workers=[0, 4095]), start=False)
    done = host.call("check", host.write(), check=False)
    assert done.returncode == 1 and ":3: [host]: workers: worker on CPU 4095" in done.stderr, done.stderr
    status, found = doctor(host)
    assert status == 1 and any("4095" in message for message in broken(found)), found


def test_users_that_a_file_names_are_looked_for(lab):
    """Users that are missing are told of; the file may be good all the same, for another machine."""
    host = lab.host(host_config("a", {"a1": vhost("a1", owner="no-such-user")}, wire=False), start=False)
    said, file = 'guest "a1": owner: there is no user "no-such-user" on this machine', host.write()
    for words in ([binary("viaduct"), "check", file], [binary("viaductd"), "--config", file, "--check"]):
        done = run(words)
        assert said in done.stdout + done.stderr, done
    status, found = doctor(host)
    assert status == 1 and any(said in message for message in broken(found)), found


def test_a_file_that_is_none(lab):
    host = lab.host(host_config("a", {}, wire=False), start=False)
    host.config.host["colour"] = "red"
    status, found = doctor(host)
    assert status == 1 and "unknown key `colour`" in broken(found)[0]
    done = host.call("doctor", lab.directory / "nowhere.toml", check=False)
    assert done.returncode == 1 and "nowhere.toml" in done.stdout


def test_it_needs_no_privileges():
    done = run(["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", binary("viaduct"), "doctor"],
               check=False)
    assert "lacks cap_net_admin" in done.stdout and "as root" in done.stdout, done.stdout
    assert "panicked" not in done.stderr
