"""The report: report.json with every sample, index.html with plots and tables, figures/ with the data of the plots."""

import json
from pathlib import Path
from statistics import median

import jinja2

from . import devices, plots, tables
from .results import METRICS

PLOTS = [
    plots.bars,
    plots.cumulative,
    plots.bandwidth_by_message,
    plots.latency_by_message,
    plots.latency_of_small_messages,
]
BURSTS = ["1", "2-3", "4-7", "8-15", "16-31", "32-63", "64"]


def write(results, goals, directory):
    """Writes all files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(results.as_json(goals), indent=1) + "\n")
    (directory / "index.html").write_text(_html(results, goals, directory / "figures"))


def _html(results, goals, figures):
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("report.html.j2")
    known = {name: devices.make(name, Path()) for name in devices.NAMES}
    titles = {name: device.title for name, device in known.items()}
    used = dict.fromkeys(sample["device"] for sample in results.samples)
    return template.render(
        machine=results.machine,
        time=results.time.strftime("%Y-%m-%d %H:%M UTC"),
        goals=[(goal, tables.goal_row(goal)) for goal in goals],
        conditions=[(known[name].title, known[name].conditions) for name in used],
        points=[_point(results, point, titles, figures) for point in results.points if results.of(point.name)],
        lacking=[point for point in results.points if point.needs],
        samples=len(results.samples),
        disturbed=sum(bool(sample.get("contaminated")) for sample in results.samples),
        disagreeing=sum(sample.get("counts_agree") is False for sample in results.samples),
    )


def _point(results, point, titles, figures):
    measured = {metric: tables.rows(results, point, metric) for metric in METRICS}
    shown = [
        ([METRICS[metric], *(titles[name] for name in found[0][1:])], found[1])
        for metric, found in measured.items()
        if found
    ]
    return {
        "title": point.title,
        "name": point.name,
        "about": point.about,
        "plots": [plots.svg(figure) for figure in _figures(results, point, titles, figures)],
        "tables": shown,
        "stages": _stages(results, point),
    }


def _figures(results, point, titles, directory):
    """Yields the point's figures, and records them."""
    directory.mkdir(exist_ok=True)
    for draw in PLOTS:
        if figure := draw(results, point, titles):
            (directory / f"{point.name}-{draw.__name__}.json").write_text(json.dumps(figure, indent=1) + "\n")
            yield figure


def _stages(results, point):
    """Returns Viaduct's cycles by stage and its bursts, a row for each case; None without samples."""
    rows = []
    for case in results.cases(point.name):
        samples = [sample for sample in results.of(point.name, case, "viaduct") if sample.get("stages")]
        if not samples:
            continue
        names = samples[0]["stages"]
        cycles = [tables.number(median(sample["stages"][name] for sample in samples)) for name in names]
        counts = [sum(column) for column in zip(*(sample["bursts"] for sample in samples))]
        shares = [f"{100 * count / max(sum(counts), 1):.0f} %" for count in counts]
        rows.append((" ".join(f"{key}={value}" for key, value in case.items()), cycles + shares))
    if not rows:
        return None
    return {
        "header": ["", *(name.replace("_", " ") for name in names), *(f"bursts of {size}" for size in BURSTS)],
        "rows": rows,
    }
