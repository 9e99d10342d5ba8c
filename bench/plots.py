"""Plots of points, as SVG."""

import io
import re
from itertools import cycle
from statistics import median

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"
from matplotlib import pyplot  # noqa: E402  # the back end comes first

from .results import METRICS  # noqa: E402

COLOURS = {"viaduct": "#0b6e4f", "testpmd": "#888888", "bridge": "#c98b2b"}
OTHERS = ["#2f5d9b", "#9b2f5d", "#7a5195", "#0b6e4f", "#c98b2b", "#888888", "#3aa6a6", "#d1495b", "#5b8c2a", "#444444", "#b07aa1"]


def colour(device, devices):
    """The same for a device everywhere, as far as they go."""
    others = [name for name in devices if name not in COLOURS]
    return COLOURS.get(device) or OTHERS[others.index(device) % len(OTHERS)]


def finished(figure, panels, across, up):
    """The figure as SVG, with names of its panels' axes and their legends."""
    for axes in panels:
        axes.set(xlabel=across, ylabel=up)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    text = buffer.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.S)


def _label(case, keys):
    return "\n".join(str(case[key]) if key == keys[-1] else f"{key} {case[key]}" for key in keys)


def bars(results, point, titles):
    """A group of bars for each case, with the spread of the rounds; dotted: the generator was the limit."""
    cases, devices = results.cases(point.name), results.devices(point.name)
    keys = [key for key in cases[0] if len({str(case[key]) for case in cases}) > 1] or list(cases[0])
    figure, axes = pyplot.subplots(figsize=(max(5, 0.55 * len(cases) * len(devices)), 3.2))
    width = 0.8 / len(devices)
    for index, device in enumerate(devices):
        for place, case in enumerate(cases):
            summary = results.summary(point.name, case, device, point.metric)
            if not summary:
                continue
            middle, least, greatest = summary
            axes.bar(
                place + (index - (len(devices) - 1) / 2) * width,
                middle,
                width * 0.92,
                color=colour(device, devices),
                yerr=[[middle - least], [greatest - middle]],
                error_kw={"elinewidth": 0.8, "capsize": 2},
                hatch=".." if results.generator_bound(point.name, case, device) else None,
                edgecolor="white",
            )
        axes.bar(0, 0, color=colour(device, devices), label=titles[device])
    axes.set_yscale(point.scale)
    axes.set_xticks(range(len(cases)), [_label(case, keys) for case in cases], fontsize=8)
    return finished(figure, [axes], ", ".join(keys), METRICS[point.metric])


def cumulative(results, point, titles):
    """How many round trips took longer: one curve a device, of the first case; None without round trips."""
    cases = results.cases(point.name)
    curves = {}
    for device in results.devices(point.name):
        counts = {}
        for sample in results.of(point.name, cases[0], device):
            for microseconds, count in sample.get("round_trip", {}).get("buckets", []):
                counts[microseconds] = counts.get(microseconds, 0) + count
        if counts:
            curves[device] = sorted(counts.items())
    if not curves:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    for device, curve in curves.items():
        total = left = sum(count for _, count in curve)
        above = []
        for _, count in curve:
            above.append(left / total)
            left -= count
        axes.plot([x for x, _ in curve], above, label=titles[device], color=colour(device, list(curves)))
    axes.set(xscale="log", yscale="log")
    return finished(figure, [axes], "round trip, us", "share that took at least as long")


def bandwidth_by_message(results, point, titles):
    """Bandwidth by message size."""
    return _by_message(results, point, titles, "mbps", "Mbit/s")


def latency_by_message(results, point, titles):
    """Latency by message size, where single messages were timed."""
    return _by_message(results, point, titles, "us", "latency, us") if point.scale == "log" else None


def _by_message(results, point, titles, key, up):
    """The median of the rounds by message size: a curve for each case and device; None without messages."""
    devices, curves = results.devices(point.name), []
    for style, case in zip(cycle(["-", "--", "-.", ":"]), results.cases(point.name)):
        for device in devices:
            sizes = {}
            for sample in results.of(point.name, case, device):
                for row in sample.get("curve", []):
                    sizes.setdefault(row["bytes"], []).append(row[key])
            if sizes:
                curves.append((device, case, style, sorted(sizes.items())))
    if not curves:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for device, case, style, sizes in curves:
        label = ", ".join([titles[device], *(str(value) for value in case.values() if len(results.cases(point.name)) > 1)])
        middle = [median(figures) for _, figures in sizes]
        axes.plot([size for size, _ in sizes], middle, style, label=label, color=colour(device, devices), linewidth=1)
    axes.set(xscale="log", yscale="log")
    return finished(figure, [axes], "message, bytes", up)
