"""Sockets at memory speed: programs as they are, and their own tests, whose connections go by rings."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_mpi import built
from test_sockets import A1, A2, PORTS, World

from lab import eventually
from lab.host import REPOSITORY
from lab.shell import run

REMOTE = REPOSITORY / "tests/mpi/remote"

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world(shared_lab):
    return World(shared_lab)


def needs(*programs):
    """Skips a test where programs are missing that `scripts/setup test` does not install."""
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)}")


class Moved:
    """Expects that so many connections are moved in the block."""

    def __init__(self, world, count):
        self.world, self.count = world, count

    def __enter__(self):
        self.before = self.world.sockets()["matched"]

    def __exit__(self, error, *_):
        if not error:
            assert self.world.sockets()["matched"] >= self.before + self.count


# Tests of CPython that make connections of TCP. Those of VSOCK hang on kernels without its loopback, with TCP as well.
CPYTHON = ["test_socket", "test_epoll"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CPYTHON)
def test_cpython(world, name):
    command = ["python3", "-m", "test", "--timeout", "300", "-i", "*VSOCK*", name]
    with Moved(world, 1):
        world.run(world.a2, command, timeout=800, mode="eager")


# Those of asyncio that make connections. One thread has both ends of most, so none may wait for the other one.
ASYNCIO = ["base_events", "buffered_proto", "events", "sendfile", "server", "sock_lowlevel", "ssl", "sslproto", "streams"]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["soon", "flap,soon"])
def test_asyncio(world, mode):
    names = [f"test.test_asyncio.test_{name}" for name in ASYNCIO]
    with Moved(world, 100):
        world.run(world.a2, ["python3", "-m", "test", "--timeout", "300", *names], timeout=800, mode=mode)


def built_tests(source):
    """Returns the directory of another project's tests, of Debian's sources, which it builds if need be: minutes."""
    return Path(run([REPOSITORY / "scripts/program-tests", source], timeout=800).stdout.strip())


def failures(text, pattern):
    return set(re.findall(pattern, text, re.MULTILINE))


LIBEVENT = r"^ +\[(\w+) FAILED\]"


@pytest.mark.nightly
@needs("cmake", "dpkg-source")
@pytest.mark.parametrize("mode", ["soon", "flap,soon"])
def test_libevent(world, mode):
    """What fails does so without the library as well."""
    program = built_tests("libevent") / "bin/regress"
    with Moved(world, 20):
        ran = world.a2.run(world.words(world.a2, [program], mode), timeout=600, check=False)
    failed = failures(ran.stdout + ran.stderr, LIBEVENT)
    if ran.returncode:
        plain = world.a2.run([program], timeout=600, check=False)
        assert failed and failed <= failures(plain.stdout + plain.stderr, LIBEVENT)


# Without the library they fail as well: they need a network, a user or a time that a container does not have.
LIBUV_FAILS = {"fs_copyfile", "getnameinfo_basic_ip6", "tcp_connect_timeout", "tcp_writealot"}


@pytest.mark.nightly
@needs("cmake", "dpkg-source")
@pytest.mark.parametrize("mode", ["soon", "flap,soon"])
def test_libuv(world, mode):
    build = built_tests("libuv1")
    # It looks for its files in the directory of the sources.
    script = f"cd {build.parent}/source/*/ && exec {build}/uv_run_tests"
    words = world.words(world.a2, ["sh", "-c", script], mode, UV_RUN_AS_ROOT=1)
    with Moved(world, 5):
        ran = world.a2.run(words, timeout=600, check=False)
    assert "ok 1 - " in ran.stdout, ran.stderr
    assert failures(ran.stdout, r"^not ok \d+ - (\w+)") <= LIBUV_FAILS, ran.stdout


MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]


@pytest.mark.nightly
def test_netpipe_of_openmpi(world, tmp_path):
    """NetPIPE checks the bytes. Without -n it measures for many minutes, with or without the library."""
    netpipe = ["NPopenmpi", "-l", 8, "-u", 1 << 20, "-n", 20, "-p", 0, "-i", "-o", tmp_path / "np.out"]
    words = [*MPIRUN, "--mca", "btl_tcp_if_include", "lo", "-np", 2, *netpipe]
    ranks = world.start(world.a2, words, "Now starting", mode="soon")
    eventually(lambda: not ranks.running(), "the end of mpirun")
    assert ranks.status == 0, ranks.describe()
    printed = ranks.text()
    assert printed.count("Integrity check passed") > 20 and "failed" not in printed


@pytest.mark.nightly
def test_openmpi_of_two_containers(world, tmp_path):
    program, network = built(tmp_path, "collective"), "10.1.1.0/24"
    remotes = [container.background(world.words(container, [REMOTE, "serve"])) for container in (world.a1, world.a2)]
    for container in (world.a1, world.a2):
        eventually(lambda: ":2222" in container.run(["ss", "-ltn"]).stdout, "tests/mpi/remote")
    places = ["--host", f"{A1.address}:2,{A2.address}:2", "-np", 4, "--mca", "plm_rsh_agent", REMOTE]
    networks = ["--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network]
    with Moved(world, 3):
        assert "4 ranks, 0 wrong" in world.run(world.a2, [*MPIRUN, *networks, *places, program])
    for remote in remotes:
        remote.stop()


MEMCACHED = """
import socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stream = b""
for number in range(2000):
    value = bytes(str(number), "ascii") * (number % 50 + 1)
    link.sendall(b"set key%d 0 0 %d\\r\\n%s\\r\\nget key%d\\r\\n" % (number, len(value), value, number))
    wanted = b"STORED\\r\\nVALUE key%d 0 %d\\r\\n%s\\r\\nEND\\r\\n" % (number, len(value), value)
    while len(stream) < len(wanted):
        stream += link.recv(65536)
    assert stream == wanted, (stream, wanted)
    stream = b""
"""


@pytest.mark.nightly
@needs("memcached")
def test_memcached(world):
    port = next(PORTS)
    world.start(world.a2, ["memcached", "-u", "root", "-p", port, "-l", A2.address, "-vv"], "server listening")
    with Moved(world, 4):
        for _ in range(4):
            world.run(world.a1, ["python3", "-c", MEMCACHED, A2.address, port])


@pytest.mark.nightly
@needs("socat")
def test_socat(world, tmp_path):
    """A file goes to an echo and back, by half-closed connections."""
    port, there, back = next(PORTS), tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(number * 7 % 251 for number in range(3_000_000)))
    world.start(world.a2, ["socat", "-d", "-d", f"TCP-LISTEN:{port},reuseaddr,fork", "PIPE"], "listening", mode="eager")
    with Moved(world, 1):
        shell = f"socat -t 20 - TCP:{A2.address}:{port} <{there} >{back}"
        world.run(world.a1, ["sh", "-c", shell], mode="eager")
    assert back.read_bytes() == there.read_bytes()


NODE = """
const net = require("net"), size = 3000000;
const server = net.createServer(one => one.pipe(one)).listen(0, "127.0.0.1", () => {
  let open = 20;
  for (let n = 0; n < 20; n++) {
    const sent = Buffer.alloc(size, n + 1), one = net.connect(server.address().port, "127.0.0.1");
    let got = 0;
    one.on("data", data => {
      if (!data.every(byte => byte == n + 1)) throw Error("wrong bytes");
      got += data.length;
      if (got == size) one.end();
    });
    one.on("close", () => { if (got != size) throw Error("short"); if (--open == 0) server.close(); });
    one.write(sent);
  }
});
"""


@pytest.mark.nightly
@needs("node")
def test_node(world):
    with Moved(world, 20):
        world.run(world.a2, ["node", "-e", NODE])


JAVA = """
import java.io.*; import java.net.*; import java.nio.*; import java.nio.channels.*;
public class Talk {
  public static void main(String[] words) throws Exception {
    var server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
    new Thread(() -> { try {
      var one = server.accept(); var selector = Selector.open(); one.configureBlocking(false);
      one.register(selector, SelectionKey.OP_READ); var bytes = ByteBuffer.allocate(65536);
      while (true) { selector.select(); selector.selectedKeys().clear(); bytes.clear();
        if (one.read(bytes) < 0) break; bytes.flip(); while (bytes.hasRemaining()) one.write(bytes); }
      one.close(); } catch (IOException e) { e.printStackTrace(); } }).start();
    var socket = new Socket("127.0.0.1", ((InetSocketAddress) server.getLocalAddress()).getPort());
    var sent = new byte[10000]; var out = socket.getOutputStream(); var in = socket.getInputStream();
    for (int turn = 0; turn < 300; turn++) {
      for (int at = 0; at < sent.length; at++) sent[at] = (byte) (turn * 7 + at * 3);
      out.write(sent);
      if (!java.util.Arrays.equals(sent, in.readNBytes(sent.length))) throw new IOException("wrong bytes");
    }
    socket.close();
    System.out.println("done");
  }
}
"""


@pytest.mark.nightly
@needs("java")
def test_java(world, tmp_path):
    (tmp_path / "Talk.java").write_text(JAVA)
    with Moved(world, 1):
        assert "done" in world.run(world.a2, ["java", tmp_path / "Talk.java"])


@pytest.mark.nightly
@needs("sshd", "ssh-keygen")
def test_openssh(world, tmp_path):
    """Its daemon puts processes into sandboxes, and gives connections away."""
    port, key, payload = next(PORTS), tmp_path / "key", tmp_path / "payload"
    world.a2.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    payload.write_bytes(bytes(number * 5 % 251 for number in range(2_000_000)))
    (tmp_path / "authorized").write_text(key.with_suffix(".pub").read_text())
    options = [f"HostKey={key}", f"AuthorizedKeysFile={tmp_path}/authorized", "StrictModes=no", "PidFile=none"]
    words = [shutil.which("sshd"), "-D", "-e", "-p", port, *(word for option in options for word in ("-o", option))]
    world.a2.run(["mkdir", "-p", "/run/sshd"])
    world.start(world.a2, words, "Server listening")
    ask = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", key, "-p", port]
    shell = f"ssh {' '.join(map(str, ask))} root@{A2.address} cat <{payload}"
    assert world.run(world.a1, ["sh", "-c", f"{shell} | cmp - {payload} && echo same"]).endswith("same\n")


GO = """
package main
import ("fmt"; "io"; "net")
func main() {
  server, _ := net.Listen("tcp", "127.0.0.1:0")
  go func() { one, _ := server.Accept(); io.Copy(one, one); one.Close() }()
  one, _ := net.Dial("tcp", server.Addr().String())
  sent, got := make([]byte, 100000), make([]byte, 100000)
  for turn := 0; turn < 50; turn++ {
    for at := range sent { sent[at] = byte(turn + at) }
    one.Write(sent)
    if _, failed := io.ReadFull(one, got); failed != nil || string(sent) != string(got) { panic("wrong bytes") }
  }
  fmt.Println("done")
}
"""


@pytest.mark.nightly
@needs("go")
def test_go_stays_with_tcp(world, tmp_path):
    (tmp_path / "talk.go").write_text(GO)
    build = ["env", "CGO_ENABLED=0", f"GOCACHE={tmp_path}/cache", "GO111MODULE=off", "go", "build", "-o", "talk", "talk.go"]
    world.a2.run(["sh", "-c", f"cd {tmp_path} && {' '.join(build)}"], timeout=300)
    before = world.sockets()["offered"]
    assert "done" in world.run(world.a2, [tmp_path / "talk"])
    assert world.sockets()["offered"] == before


# Files of tests of Redis; servers and clients are in one container. Others expect that the server sees what came first
# first, of two connections: `epoll_wait` does not promise that, and tells of rings in another order.
REDIS = ["networking", "other", "protocol", "quit", "wait", "querybuf", "scan", "sort", "dump", "auth", "keyspace"]
REDIS = ["unit/" + name for name in (*REDIS, "type/string", "type/hash", "type/set")]
REDIS += ["integration/" + name for name in ("block-repl", "redis-benchmark", "redis-cli")]


@pytest.mark.nightly
@needs("tclsh", "dpkg-source")
def test_redis(world):
    files = [word for name in REDIS for word in ("--single", name)]
    runs = shlex.join(["./runtest", "--clients", "4", *files])
    words = ["sh", "-c", f"cd {built_tests('redis')} && exec {runs}"]
    with Moved(world, 20):
        printed = world.run(world.a2, words, timeout=800, mode="soon")
    assert "All tests passed without errors" in printed


@pytest.fixture
def postgres(world, tmp_path):
    """A server of PostgreSQL in a container. Returns how to reach it, and the directory of its programs."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("no server of PostgreSQL is installed")
    port, data = next(PORTS), tmp_path / "data"
    for directory in (tmp_path, *tmp_path.parents[:3], world.host.run_dir, *world.host.run_dir.parents[:2]):
        directory.chmod(0o755)
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    initdb = [programs[-1] / "initdb", "-D", data, "-A", "trust", "-N", "--no-locale"]
    world.a2.run([*as_user, *initdb], timeout=200)
    (data / "pg_hba.conf").write_text("host all all 0.0.0.0/0 trust\nlocal all all trust\n")
    options = ["-c", f"listen_addresses={A2.address}", "-c", f"unix_socket_directories={data}", "-c", "fsync=off"]
    command = [*as_user, programs[-1] / "postgres", "-D", data, "-p", port, *options]
    server = world.start(world.a2, command, "ready to accept")
    yield ["-h", A2.address, "-p", port, "-U", "postgres"], programs[-1]
    server.stop()


@pytest.mark.nightly
@needs("psql", "pgbench")
def test_postgresql(world, postgres):
    """pgbench by TCP; it checks nothing, so the sums of its tables are compared."""
    reach, _ = postgres
    world.run(world.a1, ["pgbench", *reach, "-i", "-q", "postgres"], timeout=300)
    with Moved(world, 8):
        world.run(world.a1, ["pgbench", *reach, "-c", 8, "-t", 200, "postgres"], timeout=300)
    sums = (
        "select (select sum(abalance) from pgbench_accounts) = sum(delta), count(*) from pgbench_history"
    )
    eventually(lambda: "t|1600" in world.run(world.a1, ["psql", *reach, "-Atc", sums, "postgres"]), "the sums agree", 20)


@pytest.mark.nightly
@needs("psql", "dpkg-source")
def test_regression_tests_of_postgresql(world, postgres, tmp_path):
    """Those of `make check`, twenty clients at a time. What fails does so without the library as well."""
    (_, host, _, port, _, user), programs = postgres
    tests = shutil.copytree(built_tests("postgresql"), tmp_path / "regress", symlinks=True)

    def failed(library):
        output = tmp_path / f"output-{library}"
        output.mkdir()
        command = ["./pg_regress", f"--host={host}", f"--port={port}", f"--user={user}", f"--bindir={programs}"]
        command += ["--dlpath=.", "--inputdir=.", f"--outputdir={output}", "--schedule=parallel_schedule"]
        words = ["sh", "-c", f"cd {tests} && exec {' '.join(command)}"]
        words = world.words(world.a1, words, "soon") if library else words
        ran = world.a1.run(words, timeout=800, check=False)
        assert "test_setup" in ran.stdout, ran.stderr
        return failures(ran.stdout, r"^(?:test)? +(\w+) +\.\.\. (?!ok)")

    with Moved(world, 100):
        those = failed(library=True)
    assert not those or those <= failed(library=False)
