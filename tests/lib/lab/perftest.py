"""Programs that use RDMA in containers whose guests have a verbs device, over the drop-in libraries; perftest."""

from dataclasses import dataclass

from .host import binaries
from .shell import Failed, eventually

PORT = 18515


def libraries():
    """Returns the directory of the drop-in libraries."""
    path = binaries() / "verbs"
    if not (path / "libibverbs.so.1").exists():
        raise Failed(f"{path}/libibverbs.so.1 is missing: run make test-binaries")
    return path


def with_device(container, command, *, prefix=()):
    """Returns the command, with the environment in which it finds the container's verbs device.

    `prefix` precedes the program.
    """
    variables = [f"LD_LIBRARY_PATH={libraries()}", f"VIADUCT_RDMA={container.verbs_device}"]
    return ["env", *variables, *prefix, *command]


@dataclass
class Row:
    """perftest's result for a size: a latency is the median in microseconds, for half a round trip if there are two
    ways."""

    bytes: int
    latency: float = None
    gbps: float = None


def perftest(program, client, server, address, *options, prefixes=((), ()), meanwhile=None, timeout=600):
    """Runs a program of perftest, such as `ib_send_lat`; returns a `Row` for each size.

    `prefixes`: what comes in front of the client's and the server's program. `meanwhile()` is called once the client
    runs.
    """
    words = [program, "-d", "viaduct0", "-x", 1, "-F", *options]
    words += ["--report_gbits"] if program.endswith("_bw") else []
    listening = server.background(with_device(server, map(str, words), prefix=prefixes[1]), f"{server.name}-{program}")
    try:
        ready = lambda: f":{PORT} " in server.run(["ss", "-ltn"]).stdout or not listening.running()
        eventually(ready, f"{program} listening")
        if not listening.running():
            raise Failed(f"{program} ended with {listening.process.returncode}\n{listening.describe()}")
        asking = client.background(
            with_device(client, [*map(str, words), address], prefix=prefixes[0]), f"{client.name}-{program}"
        )
        try:
            if meanwhile:
                meanwhile()
            eventually(lambda: not asking.running(), f"the end of {program}\n{asking.describe()}", timeout)
        finally:
            asking.stop()
        if asking.process.returncode != 0:
            raise Failed(
                f"{program} ended with {asking.process.returncode}\n{asking.describe()}\n{listening.describe()}"
            )
        output = asking.text()
        asking.log.unlink()
    finally:
        listening.stop()
        listening.log.unlink()
    return rows(program, output)


def rows(program, output):
    """Returns the rows of a table that perftest printed."""
    table = [line.split() for line in output.splitlines() if line.split() and line.split()[0].isdigit()]
    if not table:
        raise Failed(f"{program} printed no table:\n{output[-1000:]}")
    if program.endswith("_bw"):
        return [Row(int(words[0]), gbps=float(words[3])) for words in table]
    return [Row(int(words[0]), latency=float(words[4])) for words in table]
