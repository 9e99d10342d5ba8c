"""What Viaduct is to reach, as ratios within rounds."""

from dataclasses import dataclass
from statistics import median

from .results import value


@dataclass(frozen=True)
class Goal:
    """A figure of Viaduct, against the best of its peers or absolute."""

    title: str
    point: str
    case: dict
    metric: str
    least: float
    aim: float
    # The better one of these in each round; none: the figure itself counts, in `unit`.
    peers: tuple = ()
    unit: str = " x"
    # Points of the peers, where they are measured in another case.
    peer_case: dict = None

    @property
    def lower_is_better(self):
        return self.metric not in ("mpps", "gbps")

    def judge(self, results):
        """The goal with what was measured."""
        own = by_round(results, self.point, self.case, "viaduct", self.metric)
        best = min if self.lower_is_better else max
        peers = [by_round(results, self.point, self.peer_case or self.case, peer, self.metric) for peer in self.peers]
        ratios = []
        for number, figure in own.items():
            others = [peer[number] for peer in peers if peer.get(number)]
            if others or not self.peers:
                ratios.append(figure / best(others) if others else figure)
        sign = "<=" if self.lower_is_better else ">="
        judged = {"title": self.title, "unit": self.unit, "measured": None, "generator_bound": False}
        judged |= {"least_text": f"{sign} {self.least:g}{self.unit}", "aim_text": f"{sign} {self.aim:g}{self.unit}"}
        if ratios:
            measured = median(ratios)
            met = measured <= self.least if self.lower_is_better else measured >= self.least
            bound = self.metric in ("mpps", "gbps") and results.generator_bound(self.point, self.case, "viaduct")
            judged |= {"measured": measured, "spread": (min(ratios), max(ratios)), "met": met, "generator_bound": bound}
        return judged


def by_round(results, point, case, device, metric):
    """{round: value}."""
    found = {sample["round"]: value(sample, metric) for sample in results.of(point, case, device)}
    return {number: figure for number, figure in found.items() if figure}


OVS = ("ovs-normal", "ovs-port")
GOALS = [
    Goal("64 B, 1 flow, no rules: cycles against OVS", "flows", {"flows": 1}, "cycles", 0.7, 0.5, OVS),
    Goal("64 B, 10 k flows, no rules: cycles against OVS", "flows", {"flows": 10_000}, "cycles", 0.7, 0.5, OVS),
    Goal("1518 B: Mpps against testpmd io", "throughput", {"size": 1518}, "mpps", 1.4, 1.8, ("testpmd",)),
]


def judge(results):
    """All goals whose points were measured."""
    measured = {point.name for point in results.points}
    return [goal.judge(results) for goal in GOALS if goal.point in measured]
