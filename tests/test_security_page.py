"""The page about what is untrusted names files, functions and fuzz targets that exist, and leaves no target out."""

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys

from lab.host import REPOSITORY

PAGE = (REPOSITORY / "docs/security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| who,", "|---"))]


def targets():
    """Returns "package property" of all fuzz targets, as `make fuzz` finds them."""
    loader = importlib.machinery.SourceFileLoader("fuzz", str(REPOSITORY / "scripts/fuzz"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz", loader))
    sys.modules["fuzz"] = module
    loader.exec_module(module)
    metadata = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--no-deps"],
                              cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    found = module.properties(json.loads(metadata)["packages"])
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
    packages = "|".join(path.name for path in (REPOSITORY / "crates").iterdir())
    cells = " ".join(row.strip("|").split("|")[3] for row in ROWS)
    named = {f"{package} {name}" for package, name in re.findall(rf"`({packages}) ([a-z0-9_]+)`", cells)}
    assert named == targets()


def test_every_row_has_a_fuzz_target_or_says_why_not():
    for row in ROWS:
        cell = row.strip("|").split("|")[3].strip()
        assert cell.startswith("`") or cell.startswith("none: "), row
