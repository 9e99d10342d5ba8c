"""Runs rdma-core's own tests and writes what became of each as JSON: `run.py OUTPUT DEVICE ADDRESS MODULE..`, where
`tests` lies."""

import importlib
import json
import sys
import unittest

# They import their neighbours by bare names, too.
sys.path[:0] = [".", "tests"]


class Outcomes(unittest.TestResult):
    """What became of each test: `ok`, `skipped`, `failed`, and why."""

    def __init__(self):
        super().__init__()
        self.of = {}

    def addSuccess(self, test):
        self.of.setdefault(test.id(), ["ok", ""])

    def addSkip(self, test, reason):
        self.of[test.id()] = ["skipped", reason]

    def addError(self, test, error):
        self.of[test.id()] = ["failed", self._exc_info_to_string(error, test)]

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)


def main(output, device, address, *modules):
    from args_parser import parser
    from tests.base import RDMATestCase

    sys.argv[1:] = ["--dev", device, "--port", "1", "--gid", "1"]
    parser.parse_args()
    # They look for the address in /sys, at the network device that an adapter is as well.
    RDMATestCase._get_ip_mac = lambda test, *device: test.args.append([*device, address, None])
    loader = unittest.TestLoader()
    outcomes = Outcomes()
    for module in modules:
        loader.loadTestsFromModule(importlib.import_module(f"tests.{module}")).run(outcomes)
    with open(output, "w") as file:
        json.dump(outcomes.of, file, indent=1)


main(*sys.argv[1:])
