"""Command line of the benchmark: `python3 -m bench` in the repository's root."""

import argparse
import os
import signal
import sys
from pathlib import Path

from . import devices, goals, machine, points, report, tables
from .progress import Progress
from .results import Results
from .runner import Runner

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    every = [each.name for each in points.load()]
    every += sorted({each.section for each in points.load() if each.section})
    parser = argparse.ArgumentParser(prog="python3 -m bench", description="Measures Viaduct and its peers.")
    parser.add_argument(
        "--only",
        metavar="POINT",
        action="append",
        choices=every,
        help=f"only this point or section: {', '.join(every)}",
    )
    parser.add_argument("--device", metavar="DEVICE", action="append", choices=devices.NAMES, help="only this device")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each case (5; 1 with --quick)")
    parser.add_argument("--attempts", type=int, default=3, metavar="N", help="at a sample that others disturb (3)")
    parser.add_argument("--quick", action="store_true", help="a few short cases, to see that everything works")
    parser.add_argument("--json", action="store_true", help="print report.json instead of tables")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/report", help="directory of the report")
    parser.add_argument(
        "--viaduct-bin", type=Path, default=ROOT / "target/release", metavar="DIR", help="where viaductd is"
    )
    parser.add_argument(
        "--programs", type=Path, default=ROOT / "target/bench", metavar="DIR", help="where the generators are"
    )
    return parser.parse_args()


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [each for each in points.load() if not args.only or {each.name, each.section} & set(args.only)]
    runner = Runner(
        attempts=args.attempts,
        rounds=args.rounds or (1 if args.quick else 5),
        quick=args.quick,
        viaduct_bin=args.viaduct_bin.resolve(),
        programs=args.programs.resolve(),
        progress=Progress(),
        only_devices=args.device,
    )
    status = 0
    try:
        machine.check()
        os.sched_setaffinity(0, {machine.GENERATOR_CPU})
        machine.allow_open_files()
        with machine.huge_pages(4096):
            runner.run(chosen)
    except machine.Unfit as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: interrupted; the report has what was measured until then", file=sys.stderr)
        status = 130
    results = Results(chosen, runner.samples, machine.describe(args.viaduct_bin))
    judged = goals.judge(results)
    report.write(results, judged, args.output)
    if args.json:
        print((args.output / "report.json").read_text())
    else:
        tables.show(results, judged)
        print(f"\nReport: {args.output / 'index.html'}")
    for failure in runner.failures:
        print(f"bench: not measured: {failure}", file=sys.stderr)
    return status or int(bool(runner.failures))


sys.exit(main())
