"""Prometheus: its own tool accepts the rules, and every alert is tested and leads to a page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).resolve().parents[2]
_SHIPPED = _ROOT / "deploy" / "prometheus"
_RULE_FILES = sorted((_SHIPPED / "rules").glob("*.yml"))
_TESTS = _SHIPPED / "tests" / "codeq-cluster.test.yml"
_METRICS = set(
    re.findall(r"^\| `(codeq_\w+)` \|", (_ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
)


def _promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def _rules() -> list[dict[str, Any]]:
    groups = [group for file in _RULE_FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


_ALERTS = {rule["alert"]: rule for rule in _rules() if "alert" in rule}


@pytest.mark.needs("promtool")
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    """The configuration includes the rules, so this reads all of them."""
    checked = _promtool("check", "config", _SHIPPED / "prometheus.yml")

    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert all(file.name in checked.stdout for file in _RULE_FILES)


@pytest.mark.needs("promtool")
def test_the_rules_do_what_their_tests_say() -> None:
    """Alerts fire when they should, not before, and with the expected text."""
    tested = _promtool("test", "rules", _TESTS)

    assert 0 == tested.returncode, tested.stdout + tested.stderr


@pytest.mark.needs("promtool")
def test_a_rule_that_is_wrong_fails_its_test(tmp_path: Path) -> None:
    """The previous test relies on this: a wrong threshold makes it fail."""
    (tmp_path / "rules").mkdir()
    for file in _RULE_FILES:
        text = file.read_text().replace("error_ratio5m > 0.01", "error_ratio5m > 0.1")
        (tmp_path / "rules" / file.name).write_text(text)
    document = yaml.safe_load(_TESTS.read_text())
    document["tests"] = [test for test in document["tests"] if "requests" in test["name"]]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / _TESTS.name).write_text(yaml.safe_dump(document))
    tested = _promtool("test", "rules", tmp_path / "tests" / _TESTS.name)

    assert tested.returncode != 0
    assert "CodeqRequestsFail" in tested.stdout + tested.stderr


@pytest.mark.parametrize("name", _ALERTS)
def test_every_alert_is_tried_both_ways(name: str) -> None:
    """One test has it silent in a healthy cluster, and one has it firing."""
    tried = [
        case
        for test in yaml.safe_load(_TESTS.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
        if case["alertname"] == name
    ]

    assert [case for case in tried if case.get("exp_alerts")]
    assert [case for case in tried if not case.get("exp_alerts")]


@pytest.mark.parametrize("name", _ALERTS)
def test_every_alert_leads_to_a_page_that_knows_it(name: str) -> None:
    """The alert names the page, and the page names the alert."""
    page, _, anchor = _ALERTS[name]["annotations"]["runbook_url"].partition("#")
    text = (_ROOT / page).read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)

    assert f"`{name}`" in text
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.needs("promtool")
def test_the_page_says_how_alerts_lead_to_runbooks_kept_elsewhere(tmp_path: Path) -> None:
    """The page's command turns each name into an address, and the rules stay valid."""
    page = (_ROOT / "deploy" / "README.md").read_text()
    [command] = re.findall(r"^sed -i .*$", page, re.MULTILINE)
    rules = tmp_path / "codeq-cluster.yml"
    rules.write_text(_RULE_FILES[0].read_text())
    moved = command.replace("/etc/prometheus/rules/codeq-cluster.yml", str(rules))
    subprocess.run(["bash", "-c", moved], check=True, timeout=60)
    urls = [
        rule["annotations"]["runbook_url"]
        for group in yaml.safe_load(rules.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]

    assert len(_ALERTS) == len(urls)
    assert all(url.startswith("https://wiki.example/codeq-cluster/docs/") for url in urls)
    assert 0 == _promtool("check", "rules", rules).returncode


def test_the_rules_name_no_metric_that_is_not() -> None:
    """A rule with a misspelt metric would be silent for ever."""
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    named = {
        name
        for rule in _rules()
        for name in re.findall(r"[\w:]*\bcodeq_[\w:]+", rule["expr"])
        if name not in recorded
    }

    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} <= _METRICS
