"""host.toml(5), which is made of docs/configuration.md, has every key that a file may have."""

import re
import tomllib

from lab.host import REPOSITORY
from lab.shell import run

PAGE = run([REPOSITORY / "dist/configuration-man"]).stdout.replace("\\-", "-")


def test_every_key_is_in_the_page():
    named = set(re.findall(r"[a-z0-9_]+", " ".join(re.findall(r"\\fB(.*?)\\fR", PAGE))))
    valid = tomllib.loads((REPOSITORY / "crates/config/tests/valid.toml").read_text())
    assert set(valid["host"]) <= named, set(valid["host"]) - named
    bgp = valid.pop("bgp")
    valid["bgp.peer"] = bgp.pop("peer")
    assert set(bgp) <= named, set(bgp) - named
    for kind, entries in valid.items():
        assert kind in PAGE
        keys = {key for entry in entries if isinstance(entry, dict) for key in entry}
        assert keys <= named, (kind, keys - named)


def test_the_page_is_plain_roff():
    for line in PAGE.splitlines():
        assert "`" not in line and "](" not in line, line
        assert not line.startswith(".") or re.match(r"\.(TH|SH|TP|PP|br)\b", line), line
