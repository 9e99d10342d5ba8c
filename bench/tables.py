"""Result tables on the terminal."""

from .results import METRICS


def number(found):
    """Writes a figure with a sensible number of digits."""
    size = abs(found)
    return f"{found:.0f}" if size >= 100 else f"{found:.1f}" if size >= 10 else f"{found:.2f}"


def cell(results, point, case, device, metric):
    """Writes median and spread, and marks."""
    summary = results.summary(point, case, device, metric)
    if not summary:
        return "-"
    middle, least, greatest = summary
    mark = "*" * results.generator_bound(point, case, device) + "!" * results.refused(point, case, device)
    return f"{number(middle)}{mark} ({number(least)}-{number(greatest)})"


def rows(results, point, metric):
    """Returns header and rows of a point's table for a metric; None if it has no such metric."""
    names = results.devices(point.name)
    table = [
        [" ".join(f"{key}={value}" for key, value in case.items())]
        + [cell(results, point.name, case, name, metric) for name in names]
        for case in results.cases(point.name)
    ]
    if all(text == "-" for row in table for text in row[1:]):
        return None
    return [METRICS[metric], *names], table


def print_table(header, table):
    """Prints a table in columns."""
    widths = [max(len(row[column]) for row in [header, *table]) for column in range(len(header))]
    for row in [header, *table]:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def show(results, goals):
    """Shows all points, and the goals."""
    for point in results.points:
        if point.needs:
            print(f"\n{point.title}: not measured, needs {point.needs}")
        for metric in METRICS:
            shown = rows(results, point, metric)
            if shown and metric in (point.metric, "mpps", "cycles"):
                print(f"\n{point.title}")
                print_table(*shown)
    print(
        "\nMedian of the rounds (least-greatest); * the generator was the limit; ! the device refused over 1 % of "
        "the packets."
    )
    if goals:
        print("\nGoals (median of the ratios within rounds)")
        print_table(["goal", "at least", "aim", "measured", "spread", ""], [goal_row(goal) for goal in goals])


def goal_row(goal):
    """Returns a goal as texts."""
    if goal["measured"] is None:
        return [goal["title"], goal["least_text"], goal["aim_text"], "-", "", "not measured"]
    note = ["met" if goal["met"] else "not met"] + ["generator-bound"] * goal["generator_bound"]
    note += ["Viaduct refused packets"] * goal["refused"]
    spread = f"{number(goal['spread'][0])}-{number(goal['spread'][1])}"
    return [
        goal["title"],
        goal["least_text"],
        goal["aim_text"],
        number(goal["measured"]) + goal["unit"],
        spread,
        ", ".join(note),
    ]
