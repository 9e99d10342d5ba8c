"""The page about what is untrusted names files, functions and fuzz targets that exist, and leaves no target out."""

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys

from lab.host import REPOSITORY

PACKAGES = "|".join(path.name for path in (REPOSITORY / "crates").iterdir())
PAGE = (REPOSITORY / "docs/security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| who,", "|---"))]


def packages():
    """Returns what cargo knows of the packages of the workspace."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--no-deps"]
    metadata = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(metadata)["packages"]


def targets():
    """Returns "package property" of all fuzz targets, as `make fuzz` finds them."""
    loader = importlib.machinery.SourceFileLoader("fuzz", str(REPOSITORY / "scripts/fuzz"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz", loader))
    sys.modules["fuzz"] = module
    loader.exec_module(module)
    found = module.properties(packages())
    return {f"{package} {name}" for package, names in found.items() for name in names}


def test_every_row_says_everything():
    assert len(ROWS) > 20
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5 and all(cells), row


def test_files_exist():
    bases = (REPOSITORY, REPOSITORY / "crates")
    named = set(re.findall(r"`([\w.-]+/[\w./-]+\.(?:rs|py|toml))`", PAGE))
    assert named and [path for path in named if not any(base.joinpath(path).exists() for base in bases)] == []


def test_functions_exist():
    named = re.findall(r"`([\w./-]+\.rs)`((?: ?,? `[a-z_]+`)+)", PAGE)
    assert named
    for path, functions in named:
        source = (REPOSITORY / "crates" / path).read_text()
        for function in re.findall(r"`([a-z_]+)`", functions):
            assert re.search(rf"\bfn {function}\b", source), f"{path} has no function {function}"


def test_fuzz_targets_are_those_that_there_are():
    cells = " ".join(row.strip("|").split("|")[3] for row in ROWS)
    named = {f"{package} {name}" for package, name in re.findall(rf"`({PACKAGES}) ([a-z0-9_]+)`", cells)}
    assert named == targets()


def test_every_row_has_a_fuzz_target_or_says_why_not():
    for row in ROWS:
        cell = row.strip("|").split("|")[3].strip()
        assert cell.startswith("`") or cell.startswith("none: "), row


def test_every_first_reader_is_in_reach_of_a_fuzz_target():
    """One of the row's targets is in its package, or in one that uses that package; or the row says that none is. It is
    not shown here that inputs call the function."""
    uses = {package["name"]: {use["name"] for use in package["dependencies"]} for package in packages()}

    def all_used(package, seen):
        if package in uses and package not in seen:
            seen.add(package)
            for use in uses[package]:
                all_used(use, seen)
        return seen

    for row in ROWS:
        _, readers, _, cell, _ = row.strip("|").split("|")
        reach = set().union(*(all_used(package, set()) for package in re.findall(rf"`({PACKAGES}) [a-z0-9_]+`", cell)))
        files = re.findall(r"`([\w-]+/[\w./-]+\.rs)`", readers)
        beyond = {file for file in files if file.split("/")[0] not in reach}
        # The row has to say so.
        assert not reach or beyond == set(re.findall(r"`([\w-]+/[\w./-]+\.rs)`", cell)), row
