# SPDX-License-Identifier: Apache-2.0
"""Results as a table: for eyes, for programs, for docs/."""
from blocks import DEVICE

KINDS = ["luts", "lutram", "ffs", "bram", "uram"]
# Logic and its wires take about 0.3 ns a level of an UltraScale+, grade -2; a guess, for no timing was analysed.
DEEP = 12


def progress(name, result):
    return f"{name}: " + (result.get("error") or f"{result['luts']} LUTs, {result['levels']} levels, "
                          f"{result['seconds']} s")


def table(results, blocks):
    """A row for each block, and the sum of those that there are."""
    rows, total = [], dict.fromkeys(KINDS, 0)
    for name, result in results.items():
        block = blocks[name]
        row = {"block": name, "module": block["top"], "what": block["what"], "count": block["count"]}
        if "error" in result:
            rows.append(row | {"error": result["error"]})
            continue
        memories = result["memories"] if block["memories"] else []
        row |= {"luts": result["luts"], "lutram": sum(one["luts"] for one in memories), "ffs": result["ffs"],
                "bram": sum(one["bram"] for one in memories), "uram": sum(one["uram"] for one in memories),
                "levels": result["levels"], "path": result["path"], "memories": memories}
        rows.append(row)
        for kind in KINDS:
            total[kind] += row[kind] * block["count"]
    missing = [name for name in blocks if name not in results or "error" in results[name]]
    return {"blocks": rows, "total": total, "device": DEVICE, "missing": missing}


def share(total):
    """Of the device's, percent; a LUT that is a memory is a LUT."""
    luts = total["luts"] + total["lutram"]
    return {"luts": 100 * luts / DEVICE["luts"]} | {
        kind: 100 * total[kind] / DEVICE[kind] for kind in ("ffs", "bram", "uram")}


def number(value):
    return f"{value:,.1f}".removesuffix(".0").replace(",", " ")


def lines(table):
    """Cells of the table's rows."""
    for row in table["blocks"]:
        head = [row["block"], row["what"], str(row["count"])]
        yield head + ([f"not obtained: {row['error']}"] if "error" in row else
                      [number(row[kind]) for kind in KINDS] + [str(row["levels"])])
    yield ["sum", "", ""] + [number(table["total"][kind]) for kind in KINDS] + [""]
    part = share(table["total"])
    luts, *others = (f"{part[kind]:.0f} %" for kind in ("luts", "ffs", "bram", "uram"))
    yield ["of a U55C", "", "", luts, "", *others, ""]


HEAD = ["block", "what", "number", "LUT", "LUT as memory", "FF", "BRAM36", "URAM", "levels"]


def text(table):
    rows = [HEAD, *lines(table)]
    widths = [max(len(row[column]) for row in rows if len(row) == len(HEAD)) for column in range(len(HEAD))]
    out = ["  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                     for column, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    if table["missing"]:
        out.append(f"without: {', '.join(table['missing'])}")
    deep = [f"{row['block']} ({row['levels']}: {row['path'][0]} to {row['path'][1]})"
            for row in table["blocks"] if row.get("levels", 0) > DEEP]
    if deep:
        out.append(f"more than {DEEP} levels: " + "; ".join(deep))
    return "\n".join(out)


def write(path, table):
    """Puts the table into the document, between its marks."""
    rows = [f"| {' | '.join(HEAD)} |", "|---|---|" + "--:|" * (len(HEAD) - 2)]
    rows += [f"| {' | '.join(row + [''] * (len(HEAD) - len(row)))} |" for row in lines(table)]
    biggest = sorted((one | {"block": row["block"], "count": row["count"]} for row in table["blocks"]
                      for one in row.get("memories", [])),
                     key=lambda one: -(one["bram"] / DEVICE["bram"] + one["uram"] / DEVICE["uram"]) * one["count"])
    rows += ["", "The largest memories:", "", "| block, memory | number | width | words | reads | BRAM36 | URAM |",
             "|---|--:|--:|--:|--:|--:|--:|"]
    rows += [f"| {one['block']}: {one['name']} | {one['count']} | {one['width']} | {one['depth']} | {one['reads']} "
             f"| {number(one['bram'])} | {number(one['uram'])} |" for one in biggest[:12]]
    deep = sorted((row for row in table["blocks"] if row.get("levels", 0) > DEEP), key=lambda row: -row["levels"])
    rows += ["", f"Paths of more than {DEEP} levels:", "", "| block | levels | from | to |", "|---|--:|---|---|"]
    rows += [f"| {row['block']} | {row['levels']} | `{row['path'][0]}` | `{row['path'][1]}` |" for row in deep]
    begin, end = "<!-- rtl/synth/run --doc writes from here -->\n", "<!-- to here -->"
    document = path.read_text()
    before, rest = document.split(begin)
    path.write_text(before + begin + "\n" + "\n".join(rows) + "\n\n" + end + rest.split(end)[1])
