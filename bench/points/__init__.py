"""What is measured, one file each. A file defines points and registers them with `@point`."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from ..generator import Replay, Traffic
from ..scenario import Scenario

POINTS = {}


@dataclass
class Case:
    """One row of a point: what is sent through which devices."""

    # What distinguishes it within its point, as in {"size": 64, "flows": 1}.
    key: dict
    devices: list
    scenario: Scenario = Scenario()
    # Traffic, or a function that makes it for a device.
    traffic: Traffic | Replay | Callable = None
    # So many of the device's ports have traffic, the first ones; None: all.
    active: int = None
    # It sends as fast as it can, so that the device should be the limit.
    saturates: bool = True
    # Before anything counts: tables are learned, caches warm up. Real-time priority is off then.
    warm_up: float = 0.4
    seconds: float = 1.0
    # The device's threads on the generator's core matter: as `share` of `Generator.run`.
    share: bool | str = False
    rounds: int = None

    def traffic_for(self, device):
        """What the generator is to do at this device."""
        return self.traffic(device) if callable(self.traffic) else self.traffic

    @property
    def text(self):
        return " ".join(f"{name}={value}" for name, value in self.key.items())


class Point:
    """Something that is measured: cases, and how they are shown."""

    name = ""
    # With other points that belong together.
    section = ""
    title = ""
    # A sentence or two for the report: what it says, what to beware of.
    about = ""
    # The metric of its plot and table, and the key it is plotted over.
    metric = "mpps"
    over = "size"
    # Of its plot: "log" where figures differ by orders of magnitude.
    scale = "linear"
    # What it needs and this machine lacks; it has no cases then.
    needs = ""

    def cases(self, quick):
        """Its cases; `quick`: a few of them that take seconds."""
        raise NotImplementedError

    def label(self, device, title, case, alone):
        """Of a curve: a device's in a case, which may be the only one."""
        return ", ".join([title, *(str(value) for value in case.values() if not alone)])

    def measure(self, session):
        """One sample: metrics by name. `session` is a `runner.Session`."""
        return session.measure_traffic()


def point(cls):
    """Registers a point."""
    POINTS[cls.name] = cls()
    return cls


def load():
    """All points in the order of their files' `ORDER`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    rank = {module.__name__: getattr(module, "ORDER", 99) for module in modules}
    return sorted(POINTS.values(), key=lambda each: rank[type(each).__module__])
