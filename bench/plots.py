"""Figures of points: their data, in a form that JSON can hold, and their drawing as SVG.

`python3 -m bench.plots FOLDER FIGURE.json...` draws recorded figures; those in docs/ are recorded in bench/figures.
"""

import io
import json
import math
import re
import sys
from itertools import cycle
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "viaduct", "font.size": 9})
from matplotlib import pyplot, ticker  # the back end comes first

from .results import HIGHER_IS_BETTER, METRICS

COLOURS = {"viaduct": "#0b6e4f", "testpmd": "#888888", "bridge": "#c98b2b"}
OTHERS = ["#2f5d9b", "#9b2f5d", "#7a5195", "#0b6e4f", "#c98b2b", "#888888", "#3aa6a6", "#d1495b", "#5b8c2a", "#444444"]
STYLES = ["-", "--", "-.", ":"]


def colour(device, devices):
    """Returns the same colour for a device everywhere, as far as the colours suffice."""
    others = [name for name in devices if name not in COLOURS]
    return COLOURS.get(device) or OTHERS[others.index(device) % len(OTHERS)]


def short(number, _=None):
    """Writes a number in readable form: 1 M for 1000000."""
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= scale:
            return f"{number / scale:g}{unit}"
    return f"{number:g}"


def _figure(kind, point, results, across, up, better, **content):
    machine = results.machine
    on = f"{machine.get('cpu', 'unknown CPU')}, {machine.get('cpus', '?')} CPUs; medians of the rounds"
    return {"kind": kind, "title": point.title, "on": on, "across": across, "up": up, "better": better, **content}


def _label(case, keys):
    words = {key: short(case[key]) if isinstance(case[key], int) else str(case[key]) for key in keys}
    return "\n".join(words[key] if key == keys[-1] else f"{key} {words[key]}" for key in keys)


def bars(results, point, titles):
    """Makes a group of bars for each case, with the spread of the rounds; dotted if the generator was the limit."""
    cases, devices = results.cases(point.name), results.devices(point.name)
    keys = [key for key in cases[0] if len({str(case[key]) for case in cases}) > 1] or list(cases[0])
    series = [
        {
            "label": titles[device],
            "colour": colour(device, devices),
            "bars": [results.summary(point.name, case, device, point.metric) for case in cases],
            "bound": [results.generator_bound(point.name, case, device) for case in cases],
        }
        for device in devices
    ]
    better = "higher" if point.metric in HIGHER_IS_BETTER else "lower"
    groups = [_label(case, keys) for case in cases]
    return _figure(
        "bars",
        point,
        results,
        ", ".join(keys),
        METRICS[point.metric],
        better,
        groups=groups,
        series=series,
        log=point.scale == "log",
    )


def cumulative(results, point, titles):
    """Makes curves of how many round trips took longer, one per device, for the first case; None without round
    trips."""
    cases, devices = results.cases(point.name), results.devices(point.name)
    series = []
    for device in devices:
        counts = {}
        for sample in results.of(point.name, cases[0], device):
            for microseconds, count in sample.get("round_trip", {}).get("buckets", []):
                counts[microseconds] = counts.get(microseconds, 0) + count
        if counts:
            x = sorted(counts)
            left = total = sum(counts.values())
            y = []
            for microseconds in x:
                y.append(left / total)
                left -= counts[microseconds]
            series.append({"label": titles[device], "colour": colour(device, devices), "style": "-", "x": x, "y": y})
    if not series:
        return None
    return _figure(
        "curves", point, results, "round trip, us", "share that took at least as long", "lower", series=series
    )


def bandwidth_by_message(results, point, titles):
    """Makes curves of bandwidth by message size."""
    return _by_message(results, point, titles, "mbps", "Mbit/s", "higher")


def latency_by_message(results, point, titles):
    """Makes curves of latency by message size, if single messages were timed."""
    return _by_message(results, point, titles, "us", "latency, us", "lower") if point.scale == "log" else None


def latency_of_small_messages(results, point, titles):
    """Makes the same for a point's small messages."""
    return point.small and _by_message(results, point, titles, "us", "latency, us", "lower", point.small)


def _by_message(results, point, titles, key, up, better, most=math.inf):
    """Makes curves of the median of the rounds by message size, up to `most` bytes, for each case and device; None
    without messages."""
    devices, cases, series = results.devices(point.name), results.cases(point.name), []
    for style, case in zip(cycle(STYLES), cases):
        for device in devices:
            sizes = {}
            for sample in results.of(point.name, case, device):
                for row in (row for row in sample.get("curve", []) if row["bytes"] <= most):
                    sizes.setdefault(row["bytes"], []).append(row[key])
            if sizes:
                label = point.label(device, titles[device], case, len(cases) == 1)
                y = [median(sizes[size]) for size in sorted(sizes)]
                series.append(
                    {"label": label, "colour": colour(device, devices), "style": style, "x": sorted(sizes), "y": y}
                )
    if len({(one["colour"], one["style"]) for one in series}) < len(series):
        for number, one in enumerate(series):
            one |= {"colour": OTHERS[number % len(OTHERS)], "style": STYLES[number // len(OTHERS)]}
    return _figure("curves", point, results, "message, bytes", up, better, series=series) if series else None


def svg(figure):
    """Draws a figure."""
    return {"bars": _draw_bars, "curves": _draw_curves}[figure["kind"]](figure)


def _draw_bars(figure):
    series, groups = figure["series"], figure["groups"]
    drawing, axes = pyplot.subplots(figsize=(max(6, 0.55 * len(groups) * len(series)), 3.2))
    width = 0.8 / len(series)
    for index, one in enumerate(series):
        for place, summary in enumerate(one["bars"]):
            if not summary:
                continue
            middle, least, greatest = summary
            axes.bar(
                place + (index - (len(series) - 1) / 2) * width,
                middle,
                width * 0.92,
                color=one["colour"],
                yerr=[[middle - least], [greatest - middle]],
                error_kw={"elinewidth": 0.8, "capsize": 2},
                hatch=".." if one.get("bound", {}) and one["bound"][place] else None,
                edgecolor="white",
            )
        axes.bar(0, 0, color=one["colour"], label=one["label"])
    if figure["log"]:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(short))
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    return titled(drawing, [axes], figure)


def _draw_curves(figure):
    drawing, axes = pyplot.subplots(figsize=(7, 4))
    # In the order in which the curves end, so that the legend reads like them.
    for one in sorted(figure["series"], key=lambda one: -one["y"][-1]):
        axes.plot(one["x"], one["y"], one["style"], label=one["label"], color=one["colour"], linewidth=1.2)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(short))
    return titled(drawing, [axes], figure)


def titled(drawing, panels, figure):
    """Returns the drawing as SVG, with title and machine above it, labels at the axes, and the legend beside it."""
    for axes in panels:
        axes.set(xlabel=figure["across"])
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"{figure['up']} ({figure['better']} is better)")
    panels[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    heads = [axes for axes in panels if axes.get_title()]
    left = panels[0].get_position().x0
    above = panels[0].get_position().y1 + (0.09 if heads else 0.03)
    drawing.text(left, above + 0.06, figure["title"], fontsize=10, fontweight="bold")
    drawing.text(left, above, figure["on"], fontsize=8, color="#555555")
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(drawing)
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.S)


def main(folder, *files):
    """Draws the recorded figures into the folder."""
    for file in map(Path, files):
        drawn = Path(folder) / f"{file.stem}.svg"
        drawn.write_text(svg(json.loads(file.read_text())))
        print(drawn)


if __name__ == "__main__":
    main(*sys.argv[1:])
