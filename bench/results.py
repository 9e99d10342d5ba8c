"""Samples, and the values computed from them."""

from datetime import UTC, datetime
from statistics import median

METRICS = {
    "mpps": "Mpps",
    "gbps": "Gbit/s",
    "cycles": "cycles/packet",
    "p50": "round trip p50, us",
    "p99": "round trip p99, us",
    "p999": "round trip p99.9, us",
    "max": "round trip max, us",
    "one_way_p50": "one way p50, us",
    "latency": "latency, us",
    "register": "registration, us",
    "deregister": "deregistration, us",
    "sent_per_delivered": "packets sent per packet delivered",
    "changes_per_second": "changes/s",
    "flows_per_second": "flows/s",
    "per_second": "per second",
    "bytes": "bytes",
    "seconds": "seconds",
    "percent": "% of a core",
}
HIGHER_IS_BETTER = {"mpps", "gbps", "changes_per_second", "flows_per_second", "per_second"}


def value(sample, metric):
    """Returns a metric of a sample, or None."""
    if metric in ("p50", "p99", "p999", "max"):
        return sample.get("round_trip", {}).get(metric)
    if metric == "one_way_p50":
        return sample.get("one_way", {}).get("p50")
    return sample.get(metric)


class Results:
    """All samples of a run."""

    def __init__(self, points, samples, machine):
        self.points = points
        self.samples = samples
        self.machine = machine
        self.time = datetime.now(UTC)

    def of(self, point, case=None, device=None):
        """Returns a device's samples of a point, for the cases whose key has these values."""
        wanted = (case or {}).items()
        return [
            sample
            for sample in self.samples
            if sample["point"] == point and device in (None, sample["device"]) and wanted <= sample["case"].items()
        ]

    def cases(self, point):
        """Returns the keys of its cases, in the order of their first measurement."""
        keys = []
        for sample in self.of(point):
            if sample["case"] not in keys:
                keys.append(sample["case"])
        return keys

    def devices(self, point):
        """Returns the devices on which it was measured, in that order."""
        return list(dict.fromkeys(sample["device"] for sample in self.of(point)))

    def values(self, point, case, device, metric):
        """Returns one value per round."""
        found = (value(sample, metric) for sample in self.of(point, case, device) if sample["case"] == case)
        return [each for each in found if each is not None]

    def summary(self, point, case, device, metric):
        """Returns (median, least, greatest), or None."""
        found = self.values(point, case, device, metric)
        return (median(found), min(found), max(found)) if found else None

    def refused(self, point, case, device):
        """Returns whether the device refused more than one packet in a hundred."""
        return any(sample.get("refused", 0) > 0.01 for sample in self.of(point, case, device))

    def generator_bound(self, point, case, device):
        """Returns whether the generator was the limit in most rounds."""
        bound = [bool(sample.get("generator_bound")) for sample in self.of(point, case, device)]
        return bool(bound) and sum(bound) * 2 > len(bound)

    def as_json(self, goals):
        """Returns the whole report as a JSON object."""
        return {
            "time": self.time.isoformat(timespec="seconds"),
            "machine": self.machine,
            "points": [{"name": point.name, "title": point.title, "metric": point.metric} for point in self.points],
            "goals": goals,
            "samples": self.samples,
        }
