"""The points that are measured. Each file defines some and registers them with `@point`."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from ..generator import Replay, Traffic
from ..results import METRICS
from ..scenario import Scenario

POINTS = {}


@dataclass
class Case:
    """One row of a point: the traffic, and the devices through which it goes."""

    # The key of the case within its point, as in {"size": 64, "flows": 1}.
    key: dict
    devices: list
    scenario: Scenario = Scenario()
    # Traffic, or a function that makes it for a device.
    traffic: Traffic | Replay | Callable = None
    # How many of the device's ports have traffic, the first ones; None: all.
    active: int = None
    # Whether it sends as fast as it can, so that the device should be the limit.
    saturates: bool = True
    # Seconds before anything counts, in which tables are learned and caches warm up. Real-time priority is off then.
    warm_up: float = 0.4
    seconds: float = 1.0
    # Whether the device's threads need a share of the generator's core, as `share` of `Generator.run`.
    share: bool | str = False
    rounds: int = None

    def traffic_for(self, device):
        """Returns the generator's task at this device."""
        return self.traffic(device) if callable(self.traffic) else self.traffic

    @property
    def text(self):
        return " ".join(f"{name}={value}" for name, value in self.key.items())


class Point:
    """Something that is measured: cases, and how they are shown."""

    name = ""
    # The section of the report, for points that belong together.
    section = ""
    title = ""
    # One or two sentences for the report: what the point says, and what to beware of.
    about = ""
    # The metric of its plot and table, and the key it is plotted over.
    metric = "mpps"
    over = "size"
    # Scale of the plot: "log" if figures differ by orders of magnitude.
    scale = "linear"
    # If it has one, the size of messages up to which another plot shows their latencies, in bytes.
    small = None
    # Things that it needs and this machine lacks; it then has no cases.
    needs = ""

    def cases(self, quick):
        """Returns its cases; with `quick`, a few of them that take seconds."""
        raise NotImplementedError

    def label(self, device, title, case, alone):
        """Returns the label of a curve: a device's in a case, which may be the only one."""
        return ", ".join([title, *(str(value) for value in case.values() if not alone)])

    def measure(self, session):
        """Takes one sample: metrics by name. `session` is a `runner.Session`."""
        return session.measure_traffic()


def point(cls):
    """Registers a point. A metric without a name would only be missed by the report, after all was measured."""
    assert cls.metric in METRICS, f"{cls.name}: bench/results.py does not name the metric {cls.metric}"
    POINTS[cls.name] = cls()
    return cls


def load():
    """Loads all points, in the order of their files' `ORDER`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    rank = {module.__name__: getattr(module, "ORDER", 99) for module in modules}
    return sorted(POINTS.values(), key=lambda each: rank[type(each).__module__])
