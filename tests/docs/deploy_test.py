"""What lies in `deploy/` is about the program as it is: options, ports, paths and metrics exist."""

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from loadslice.app.commands.serve import command
from loadslice.serve.access import HEALTH_PATHS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
METRICS = (DEPLOY.parent / "docs/generated/metrics.md").read_text(encoding="utf-8")
KNOWN = dict(re.findall(r"^\| `(loadslice_\w+)` \| (\w+) ", METRICS, re.MULTILINE))
OPTIONS = {option for parameter in command.params for option in parameter.opts}


def expressions() -> list[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana/loadslice.json").read_text(encoding="utf-8"))
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    found.append(("instance", dashboard["templating"]["list"][1]["query"]))
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text(encoding="utf-8"))
    return found + [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_every_metric_and_label_that_a_panel_or_an_alert_names_exists(title: str, expression: str) -> None:
    names = re.findall(r"loadslice_\w+", expression)
    assert names
    for name in names:
        base = name.removesuffix("_bucket")
        assert KNOWN[base] == ("histogram" if name.endswith("_bucket") else KNOWN[base])
        if KNOWN[base] == "counter":
            assert re.search(rf"(rate|increase)\({name}", expression), f"{title}: {name} is a counter"
    labels = {"instance", "le"}
    for name in names:
        row = next(line for line in METRICS.splitlines() if f"`{name.removesuffix('_bucket')}`" in line)
        labels |= set(re.findall(r"`(\w+)`", row.split("|")[3]))
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels, title
    assert set(re.findall(r"[{,](\w+)(?:=~|!=|=)", expression)) <= labels, title


def test_the_dashboard_has_no_panel_twice() -> None:
    panels = json.loads((DEPLOY / "grafana/loadslice.json").read_text(encoding="utf-8"))["panels"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in panels}) == len(panels)


def documents() -> dict[str, dict]:
    text = (DEPLOY / "kubernetes/loadslice.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_the_container_is_started_with_options_that_exist_and_probed_where_it_answers() -> None:
    (container,) = documents()["Deployment"]["spec"]["template"]["spec"]["containers"]
    given = dict(word.split("=", 1) for word in container["args"] if word.startswith("--"))
    assert set(given) <= OPTIONS
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in HEALTH_PATHS
    assert container["readinessProbe"]["httpGet"]["path"].endswith("/ready")
    assert container["livenessProbe"]["httpGet"]["path"].endswith("/live")
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {int(given["--http"]), int(given["--grpc"])}


def test_a_pod_is_given_longer_than_it_drains_and_mounts_what_it_is_told_to_read() -> None:
    spec = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = dict(word.split("=", 1) for word in container["args"] if word.startswith("--"))
    waits_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > float(given["--drain-s"]) + waits_s
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in [container["args"][1], given["--tokens"], given["--tls-cert"], given["--tls-key"]]:
        assert any(path.startswith(f"{mount}/") for mount in mounts)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert documents()["NetworkPolicy"]["spec"]["egress"] == []


def test_the_unit_starts_with_options_that_exist_and_lets_it_drain() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "loadslice.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[:2] == ["/opt/loadslice/bin/loadslice", "serve"]
    assert {word for word in words if word.startswith("--")} <= OPTIONS
    assert float(unit["Service"]["TimeoutStopSec"]) > float(words[words.index("--drain-s") + 1])
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    assert unit["Service"]["ProtectSystem"] == "strict"


def test_the_container_file_runs_as_nobody_and_pins_what_it_installs() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001", last, re.MULTILINE)
    assert "pip install" not in last
    assert "--require-hashes" in text
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in source.split())
