"""Slurm, unmodified: the prolog and epilog of dist/ make and remove the devices and windows of jobs."""

import os
import subprocess

import pytest

from lab.host import REPOSITORY, binaries
from lab.shell import run
from lab.topology import host_config

pytestmark = pytest.mark.nightly

# Any user who has a name and is not root.
USER = "daemon"

# The node's address: Slurm resolves nothing where there is only a loopback device.
ADDRESS = "192.0.2.1"
CONFIGURATION = """
ClusterName=one
FirstJobId=2000000
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/etc/slurm/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation=/etc/slurm/state
SlurmdSpoolDir=/etc/slurm/spool
SlurmctldPidFile=/etc/slurm/slurmctld.pid
SlurmdPidFile=/etc/slurm/slurmd.pid
Prolog=/etc/slurm/prolog
Epilog=/etc/slurm/prolog
PrologFlags=Alloc
ReturnToService=2
NodeName={host} NodeAddr={address} CPUs=2 Features=viaduct-vm State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""

# In mount namespaces of its own: what programs and prolog expect at fixed places is the test's.
CLUSTER = """
set -eu
mount --bind "$DIRECTORY/slurm" /etc/slurm
mkdir -p /run/viaduct
mount --rbind "$RUN_DIR" /run/viaduct
mount --bind "$BINARIES" /usr/local/bin
trap 'kill $(jobs -p)' EXIT
cd /etc/slurm
munged --force --foreground --key-file=munge.key --socket=munge.socket --pid-file=munge.pid --seed-file=munge.seed \
  >munged.log 2>&1 &
within() {
  local tries=6000
  until "$@" >/dev/null 2>&1; do
    [ $((tries -= 1)) -gt 0 ] || { echo "not yet: $*" >&2; exit 1; }
    sleep 0.05
  done
}
within munge -n -S munge.socket
slurmctld -D >slurmctld.log 2>&1 &
slurmd -D >slurmd.log 2>&1 &
idle() { sinfo --noheader --format=%T | grep -qx idle; }
within idle
job() { setpriv --reuid="$USER" --regid="$USER" --clear-groups timeout 600 srun "$@"; }
"""


@pytest.fixture
def cluster(lab, tmp_path):
    """Starts a node with Viaduct; returns the host, and a function that runs a script beside Slurm's daemons, in which
    `job` is srun as USER, and returns its output."""
    lab.plug("a")
    lab.plug("a", device="ether0").ip(f"address add {ADDRESS}/24 dev ether0")
    host = lab.host(host_config("a", {}), start=False)
    windows = host.run_dir / "rdma/vm"
    windows.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "windows", windows])
    host.start()
    for name in ("slurm/state", "slurm/spool"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "slurm/munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "slurm/munge.key").chmod(0o400)
    text = CONFIGURATION.format(host=os.uname().nodename, address=ADDRESS)
    (tmp_path / "slurm/slurm.conf").write_text(text)
    prolog = tmp_path / "slurm/prolog"
    prolog.write_text((REPOSITORY / "dist/slurm-prolog").read_text())
    prolog.chmod(0o755)

    def script(words):
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": "/usr/local/bin/verbs",
            "BINARIES": str(binaries().resolve()),
            "USER": USER,
            "DIRECTORY": str(tmp_path),
            "RUN_DIR": str(host.run_dir),
        }
        # `ip netns exec` would hide the control groups, without which slurmd does not start.
        command = ["nsenter", f"--net=/run/netns/{host.namespace.name}", "unshare", "--mount", "bash", "-c"]
        command.append(CLUSTER + words)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        logs = "".join(f"\n{log.name}:\n{log.read_text()[-3000:]}" for log in tmp_path.glob("slurm/*.log"))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
        return done.stdout

    return host, script


def test_the_prolog_makes_all_or_nothing_and_routes_to_other_nodes(cluster):
    """slurmd runs it so, for a job of three nodes of which this is the second."""
    host, script = cluster
    shown = script("""
export SLURM_JOB_ID=2000007 SLURM_JOB_UID=1 SLURM_JOB_GID=1 SLURMD_NODENAME=node2 SLURM_NODELIST=node[1-3]
printf '%s\n' '192.0.2.11 node1' '192.0.2.13 node3' >/etc/slurm/hosts
cat /etc/hosts >>/etc/slurm/hosts
mount --bind /etc/slurm/hosts /etc/hosts
scontrol() { command scontrol "$@" || echo; }
export -f scontrol
SLURM_SCRIPT_CONTEXT=prolog_slurmd /etc/slurm/prolog
viaduct export
SLURM_SCRIPT_CONTEXT=epilog_slurmd /etc/slurm/prolog
echo '192.0.2.11 node1' >/etc/hosts
if SLURM_SCRIPT_CONTEXT=prolog_slurmd /etc/slurm/prolog 2>said; then exit 1; fi
cat said
# After a prolog that failed, and where the node has started anew, there is nothing to remove.
SLURM_SCRIPT_CONTEXT=epilog_slurmd /etc/slurm/prolog
""")
    assert "node node3 has no IPv4 address" in shown, shown
    for words in ('"10.0.0.1/32"', '"192.0.2.11"', '"10.0.0.2"', '"10.0.0.3/32"', '"192.0.2.13"'):
        assert words in shown, shown
    assert host.viaduct("guest") == [] and host.viaduct("network") == []


def test_a_job_has_a_verbs_device_while_it_runs(cluster):
    host, script = cluster
    shown = script("""
job --ntasks=1 bash -c 'ibv_rc_pingpong -g 1 & until ss -Hltn | grep -q :18515; do sleep 0.05; done
  ibv_rc_pingpong -g 1 localhost; wait'
within idle
""")
    assert shown.count("1000 iters in") == 2, shown
    assert host.viaduct("guest") == [] and host.viaduct("network") == []
    assert not list(host.run_dir.glob("rdma/job*"))


def test_a_job_has_the_window_and_socket_of_a_machine_while_it_runs(cluster):
    host, script = cluster
    shown = script("""
job --ntasks=1 --constraint=viaduct-vm bash -c 'cd /run/viaduct; id -un
  stat -c "%U %s" rdma/vm/job2000000; stat -c %F job2000000.sock
  [ -w rdma/vm/job2000000 ] && echo writable'
within idle
""")
    size = 1024 << 20
    assert shown.split("\n") == [USER, f"{USER} {size}", "socket", "writable", ""], shown
    assert host.viaduct("guest") == [] and host.viaduct("network") == []
    assert not list(host.run_dir.glob("rdma/vm/*")) and not (host.run_dir / "job2000000.sock").exists()
