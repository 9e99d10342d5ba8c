"""Takes the samples: rounds, and within a round one device after the other."""

import time
from contextlib import ExitStack
from itertools import groupby

from . import devices, machine
from .generator import Generator, Replay, Replayer
from .process import Failed

PATIENCE = 50  # short runs until something gets through
ENOUGH = 0.99  # of what is sent may be lost then; while addresses are learned, everything is
DISAGREEMENT = 0.05  # between the device's and the generator's count


class Session:
    """One sample: a running device, and a case to measure on it."""

    def __init__(self, device, case, programs):
        self.device = device
        self.case = case
        self.programs = programs

    def generator(self, traffic=None):
        """Starts a generator at those of the device's ports that are active in the case."""
        traffic = traffic or self.case.traffic_for(self.device)
        ports = self.device.ports[: self.case.active]
        log = self.device.directory / "generator.log"
        if isinstance(traffic, Replay):
            return Replayer(self.programs, ports, traffic, log)
        return Generator(self.programs, ports, self.case.scenario.guests, traffic, log)

    def measure_traffic(self):
        """Takes the usual sample: warm up, read counters at rest, run, read counters at rest."""
        generator = self.generator()
        try:
            self._wait_for_traffic(generator)
            generator.run(self.case.warm_up, share=True)
            generator.run(0.1)
            before = self.device.counters()
            # A device in the kernel has no process whose time could be measured separately.
            with machine.unlimited_real_time(), machine.Noise([generator.pid, *self.device.pids]) as noise:
                done = generator.run(self.case.seconds, share=self.case.share)
            after = self.device.counters()
        finally:
            generator.stop()
        metrics = traffic_metrics(done) | device_metrics(done, before, after)
        if not self.case.saturates:
            metrics["generator_bound"] = False
        return metrics | {
            "others": noise.others,
            "steal": noise.steal,
            "contaminated": noise.contaminated and bool(self.device.pids),
        }

    def _wait_for_traffic(self, generator):
        """Waits until a packet gets through: a device may take a while until it uses ports that came up."""
        for _ in range(PATIENCE):
            metrics = traffic_metrics(generator.run(0.1, share=True))
            if metrics.get("lost", 0) < ENOUGH * metrics.get("sent", 0) or metrics.get("round_trip", {}).get("count"):
                return
        raise Failed("nothing gets through")


def traffic_metrics(done):
    """Returns the generator's measurements."""
    seconds = done["seconds"]
    receivers = {stream["rx"] for stream in done["streams"] if stream["rx"] >= 0}
    packets = sum(done["ports"][port]["packets"] for port in receivers)
    drained = sum(done["ports"][port]["drained"] for port in receivers)
    octets = sum(done["ports"][port]["bytes"] for port in receivers)
    sent = sum(stream["sent"] for stream in done["streams"])
    metrics = {"generator_busy": done["busy"]}
    if receivers:
        metrics |= {
            "mpps": packets / seconds / 1e6,
            "gbps": (octets + 4 * packets) * 8 / seconds / 1e9,
            "sent": sent,
            "lost": max(0, sent - packets - drained),
        }
    if "probe" in done:
        metrics |= {"probe_timeouts": done["probe"]["timeouts"], "round_trip": done["probe"]["round_trip"]}
    latencies = [port["latency"] for port in done["ports"] if port.get("latency", {}).get("count")]
    if latencies:
        metrics["one_way"] = latencies[0]
    return metrics


def device_metrics(done, before, after):
    """Returns the device's counts for the same time, and whether they agree with the generator's."""
    if not after:
        return {"generator_bound": done["busy"] > 0.9}
    delta = after.since(before)
    offered = sum(stream["sent"] for stream in done["streams"]) + sum(hop["forwarded"] for hop in done["forwards"])
    if "probe" in done:
        offered += 2 * done["probe"]["round_trip"]["count"]
    packets = max(delta.packets, 1)
    # Not computed from the device's idle cycles, some of which were before and after the traffic.
    busy = delta.busy / (done["seconds"] * done["hz"] * delta.threads)
    idle = max(0, 1 - busy) if delta.busy else None
    return {
        "received": delta.packets,
        "cycles": delta.busy / packets if delta.busy else None,
        "stages": {name: cycles / packets for name, cycles in delta.stages.items()},
        "bursts": delta.bursts,
        "details": {name: count for name, count in delta.details.items() if count},
        "refused": delta.refused / packets,
        "idle": idle,
        "counts_agree": abs(delta.packets - offered) <= DISAGREEMENT * max(offered, 1) and busy <= 1 + DISAGREEMENT,
        "generator_bound": done["busy"] > 0.9 if idle is None else idle > 0.1,
    }


class Runner:
    """Runs points and collects their samples."""

    def __init__(self, *, rounds, attempts, quick, viaduct_bin, programs, progress, only_devices=None):
        self.rounds = rounds
        # How often a sample is tried that fails, or during which others use the machine.
        self.attempts = attempts
        self.quick = quick
        self.viaduct_bin = viaduct_bin
        self.programs = programs
        self.progress = progress
        self.only_devices = only_devices
        self.samples = []
        self.failures = []

    def plan(self, points):
        """Returns the cases of all points, in groups that share devices: [(point, scenario, cases)]."""
        groups = []
        for point in points:
            cases = [self._trimmed(case) for case in point.cases(self.quick)]
            cases = [case for case in cases if case.devices]
            groups += [(point, scenario, list(some)) for scenario, some in groupby(cases, lambda case: case.scenario)]
        return groups

    def _trimmed(self, case):
        if self.only_devices:
            case.devices = [name for name in case.devices if name in self.only_devices]
        if self.quick:
            case.seconds, case.warm_up = min(case.seconds, 0.3), min(case.warm_up, 0.2)
        return case

    def run(self, points):
        """Measures all points, into `samples`."""
        groups = self.plan(points)
        self.progress.expect(sum(len(case.devices) * self._rounds(case) for *_, cases in groups for case in cases))
        for point, scenario, cases in groups:
            try:
                self._run_group(point, scenario, cases)
            except Failed as failure:
                self.failures.append(f"{point.name}: {failure}")
                self.progress.say(f"FAILED: {failure}")

    def _rounds(self, case):
        return min(case.rounds or self.rounds, self.rounds)

    def _run_group(self, point, scenario, cases):
        names = list(dict.fromkeys(name for case in cases for name in case.devices))
        with ExitStack() as stack:
            running = {}
            for name in names:
                self.progress.say(f"{point.name}: starting {name}")
                device = devices.make(name, self.viaduct_bin)
                stack.callback(device.stop)
                device.start(scenario)
                device.pause()
                running[name] = device
            for number in range(max(map(self._rounds, cases))):
                for case in cases:
                    if number < self._rounds(case):
                        self._run_round(point, case, number, running)

    def _run_round(self, point, case, number, running):
        for name in case.devices:
            self.progress.sample(point, case, number, name)
            device = running[name]
            device.resume()
            try:
                metrics = self._sample(point, case, device)
            except Failed as failure:
                raise Failed(f"{name}, {case.text}: {failure}\n{device.last_words()}") from failure
            finally:
                device.pause()
            sample = {
                "point": point.name,
                "case": case.key,
                "device": name,
                "round": number,
                "time": time.time(),
                **metrics,
            }
            self.samples.append(sample)
            self.progress.done(point, sample)

    def _sample(self, point, case, device):
        """Takes a sample, and repeats it while others disturb it or it fails."""
        for attempt in range(self.attempts):
            device.forget_flows()
            try:
                metrics = point.measure(Session(device, case, self.programs))
            except Failed as failure:
                if attempt + 1 == self.attempts:
                    raise
                self.progress.say(f"once more after: {failure}")
                continue
            metrics["attempts"] = attempt + 1
            if not metrics.get("contaminated"):
                break
        return metrics
