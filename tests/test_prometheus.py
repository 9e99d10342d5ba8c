"""A real Prometheus scrapes the daemon, with the alert rules and the dashboard's queries of dist/."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from lab import PATIENCE, Background, eventually
from lab.topology import SEATS, host_config, tap
from lab.traffic import send

DIST = Path(__file__).parent.parent / "dist"
RULES = DIST / "prometheus/viaduct.rules.yml"
A1, A2 = SEATS["a1"], SEATS["a2"]
CONFIG = """
global: {{ scrape_interval: 200ms, evaluation_interval: 200ms }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: viaduct
    static_configs: [{{ targets: ["127.0.0.1:9101"] }}]
"""


def promtool(*arguments):
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_alerts_fire_when_they_should():
    assert "16 rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", RULES.with_suffix(".test.yml"))


@pytest.fixture
def host(lab):
    lab.plug("a")
    guests = {"a1": {**tap("a1"), "rdma": "a1.0"}, "a2": tap("a2")}
    config = host_config("a", guests, metrics="127.0.0.1:9101")
    config.rule("blue", 10, "drop", protocol="udp", ports="7653")
    host = lab.host(config)
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    return host


@pytest.fixture
def prometheus(host, tmp_path):
    """Returns a function that asks Prometheus' HTTP API and returns the data."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES))
    promtool("check", "config", config)
    command = [
        "ip", "netns", "exec", host.namespace.name, "prometheus", f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path}/data", "--web.listen-address=127.0.0.1:9090",
    ]  # fmt: skip
    server = Background(command, tmp_path / "prometheus.log")

    def ask(path, **words):
        with host.namespace.entered():
            url = f"http://127.0.0.1:9090/api/v1/{path}?{urllib.parse.urlencode(words)}"
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]

    server.wait_for("Server is ready to receive web requests")
    yield ask
    server.stop()


def test_prometheus_reads_the_metrics_and_the_rules(host, prometheus):
    targets = eventually(
        lambda: [t for t in prometheus("targets")["activeTargets"] if t["health"] == "up"], "the daemon is scraped"
    )
    assert targets[0]["labels"]["job"] == "viaduct"
    host.a1.expect_ping(A2.address)
    send(host.a1, A2.address, 7653)

    def rules():
        groups = prometheus("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] == "ok" for rule in found) else None

    assert len(eventually(rules, "every rule was evaluated")) == 16

    def value(query):
        return eventually(lambda: prometheus("query", query=query)["result"], query)

    assert float(value('viaduct_rule_packets_total{network="blue",ports="7653"} > 0')[0]["value"][1]) >= 1
    assert value('process_open_fds{job="viaduct"} > 10')
    assert value('process_resident_memory_bytes{job="viaduct"} > 1e6')
    assert value('viaduct_drops_total{reason="rule_drop"} > 0')
    assert value('viaduct_vif_drops_total{vif="a1",reason="rule_drop"} > 0')
    assert not [alert for alert in prometheus("alerts")["alerts"] if alert["state"] == "firing"]


def test_every_panel_of_the_dashboard_has_data(host, prometheus):
    dashboard = json.loads((DIST / "grafana/viaduct.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 15
    host.a1.expect_ping(A2.address)
    send(host.a1, A2.address, 7653)

    def filled(query):
        query = re.sub(r"\$(instance|network)", ".*", query.replace("$__rate_interval", "10s"))
        # Series that are there only when something goes wrong are asked for without that condition.
        return eventually(lambda: prometheus("query", query=query.removesuffix(" > 0"))["result"], query)

    for query in queries:
        filled(query)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert any(label in series for series in prometheus("series", **{"match[]": metric})), metric
