"""Draws the results of `make card-bench`: python3 -m bench.card RESULTS FOLDER.

RESULTS has one JSON object per line."""

import json
import sys
from pathlib import Path

from .plots import pyplot, titled

# A published FPGA vRouter with HBM, one pipe in each direction: guests' frames, bytes, and their Gbit/s.
PUBLISHED = {
    "downstream": [(64, 191e-3 * 64 * 8)],
    "upstream": [(64, 130e-3 * 64 * 8)],
    "both": [(64, 320e-3 * 64 * 8), (1518, 250)],
}
COLOURS = {"1+1": "#2f5d9b", "2+2": "#0b6e4f"}
SIMULATED = "simulated clock by clock at 250 MHz, no board; 1+1: one pipe each way, 2+2: two"


def gbits(mpps, size):
    return mpps * size * 8 / 1000


def throughput(results):
    """Draws the Gbit/s of guests' frames by size, for each direction while both are busy, and the limit that the
    beats set."""
    drawing, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), gridspec_kw={"wspace": 0.25})
    for axes, name in zip(panels, ("downstream", "upstream", "both")):
        directions = {"downstream": ("down",), "upstream": ("up",), "both": ("down", "up")}[name]
        for card, colour in COLOURS.items():
            points = sorted((r for r in results if r["name"].startswith(f"{card} size ")), key=lambda r: r["size"])
            sizes = [point["size"] for point in points]
            rates = [sum(gbits(point[f"{d}_mpps"], point["size"]) for d in directions) for point in points]
            limits = [len(directions) * gbits(point["limit_mpps"], point["size"]) for point in points]
            axes.plot(sizes, limits, "-", color=colour, linewidth=5, alpha=0.25, label=f"{card}: limit of the beats")
            axes.plot(sizes, rates, "o-", color=colour, markersize=3, linewidth=1, label=f"{card}: measured")
        axes.plot(*zip(*PUBLISHED[name]), "x", color="#d1495b", label="published FPGA vRouter,\none pipe each way")
        axes.set_xscale("log", base=2)
        axes.set_xticks([64, 128, 256, 512, 1518], ["64", "128", "256", "512", "1518"])
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=9)
    figure = {"title": "Card: throughput by frame size, both directions busy", "on": SIMULATED, "better": "higher"}
    return titled(drawing, panels, {**figure, "across": "guest's frame, bytes", "up": "Gbit/s of guests' frames"})


def latency(results):
    """Draws percentiles of latency at each point that measured them, for both directions."""
    points = [r for r in results if r["latency_clocks_down"][0]]
    drawing, axes = pyplot.subplots(figsize=(9, 3.2))
    for index, (part, colour) in enumerate(zip(("p50", "p99", "p99.9"), ("#0b6e4f", "#c98b2b", "#d1495b"))):
        values = [r[f"latency_clocks_{direction}"][index] for r in points for direction in ("down", "up")]
        places = [place + (index - 1) * 0.27 for place in range(len(values))]
        axes.bar(places, values, 0.25, color=colour, label=part)
    axes.set_xticks(range(2 * len(points)), ["down", "up"] * len(points), fontsize=8)
    for index, point in enumerate(points):
        name = point["name"].replace(" latency 64", "").replace(",", "\n")
        axes.text(2 * index + 0.5, -0.1, name, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8)
    axes.axhline(500, color="#888888", linewidth=0.8, linestyle=":", label="goal for p99.9")
    figure = {"title": "Card: latency of 64-byte frames, at 90 % of the load unless named", "on": SIMULATED}
    return titled(drawing, [axes], {**figure, "across": "", "up": "clocks of 4 ns", "better": "lower"})


TRAFFIC = ["both 64", "GRE", "IPv6", "VXLAN bridged", "VXLAN routed", "IMIX", "Zipf 64", "Zipf IMIX", "64 flows a pipe"]


def traffic(results):
    """Draws the share of the beats' limit that each kind of traffic reaches, in both directions."""
    drawing, axes = pyplot.subplots(figsize=(9, 3.2))
    points = [r for name in TRAFFIC for card in COLOURS for r in results if r["name"] == f"{card} {name}"]
    for offset, direction, colour in ((-0.2, "down", "#0b6e4f"), (0.2, "up", "#2f5d9b")):
        parts = [100 * r[f"beats_{direction}"] for r in points]
        axes.bar([place + offset for place in range(len(points))], parts, 0.38, color=colour, label=direction)
    names = [r["name"].replace(" ", "\n", 1) for r in points]
    names = [name.replace("VXLAN ", "VXLAN\n").replace("64 flows", "64 flows\n") for name in names]
    axes.set_xticks(range(len(points)), names, fontsize=8)
    axes.axhline(98, color="#888888", linewidth=0.8, linestyle=":", label="goal")
    figure = {"title": "Card: kinds of traffic, both directions busy", "on": SIMULATED, "better": "higher"}
    return titled(drawing, [axes], {**figure, "across": "", "up": "% of what the beats allow"})


def main(results, folder):
    results = [json.loads(line) for line in Path(results).read_text().splitlines()]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("card-throughput", throughput), ("card-latency", latency), ("card-traffic", traffic)):
        (folder / f"{name}.svg").write_text(draw(results))
        print(f"{folder / name}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
