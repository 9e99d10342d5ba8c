"""The progress display on the terminal."""

import sys
import time


class Progress:
    """One line per sample, with the remaining time."""

    def __init__(self, output=sys.stderr):
        self.output = output
        self.total = self.finished = 0
        self.start = time.monotonic()

    def expect(self, total):
        self.total = total

    def say(self, text):
        print(text, file=self.output, flush=True)

    def sample(self, point, case, number, device):
        left = ""
        if self.finished:
            seconds = (time.monotonic() - self.start) / self.finished * (self.total - self.finished)
            left = f", {seconds // 60:.0f} min {seconds % 60:02.0f} s left"
        at = f"{self.finished + 1}/{self.total}{left}"
        print(f"[{at}] {point.name} {case.text} round {number + 1} {device}: ", end="", file=self.output, flush=True)

    def done(self, point, sample):
        self.finished += 1
        words = []
        if sample.get("mpps"):
            words.append(f"{sample['mpps']:.3f} Mpps")
        elif sample.get("gbps"):
            words.append(f"{sample['gbps']:.2f} Gbit/s")
        if sample.get("latency"):
            words.append(f"{sample['latency']:.2f} us")
        if sample.get("cycles"):
            words.append(f"{sample['cycles']:.0f} cycles/packet")
        if "round_trip" in sample and sample["round_trip"]["count"]:
            words.append(f"round trip {sample['round_trip']['p50']:.2f} us, p99 {sample['round_trip']['p99']:.2f}")
        notes = ["generator-bound"] * bool(sample.get("generator_bound"))
        notes += [f"device refused {100 * sample.get('refused', 0):.0f} %"] * (sample.get("refused", 0) > 0.01)
        notes += ["counts disagree"] * (sample.get("counts_agree") is False) + ["disturbed"] * bool(
            sample.get("contaminated")
        )
        self.say(", ".join(words or ["done"]) + (f" ({', '.join(notes)})" if notes else ""))
