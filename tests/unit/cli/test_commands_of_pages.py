"""Commands of pages: a test covers every command in the documentation.

Marked blocks are run by their page's test. Every other line must be accepted by its program's
parser, or is listed here with the test that covers it.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NoReturn

import pytest

from codeq_cluster.cli.main import _parser
from tests.acceptance.runbooks import Block, blocks
from tests.unit.named_tests import ROOT, named_in

_PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    ROOT / "jepsen-lite" / "README.md",
    ROOT / "bench" / "README.md",
]
_ACCEPTANCE = "tests/acceptance"
_DEPLOY = "tests/unit/test_deploy"

# For each page, the test that runs its marked blocks and fails if it leaves one out.
_README = (
    f"{_ACCEPTANCE}/test_readme.py",
    "test_the_readme_and_the_five_minutes_work_as_they_are_written",
)
_RUNBOOKS = (f"{_DEPLOY}_runbooks.py", "test_every_page_is_run_by_a_test")
_HTTP = ("tests/integration/docs/test_http_page.py", "test_every_request_of_the_page_is_run")
_CLIENTS = f"{_ACCEPTANCE}/test_clients_from_nothing.py"
_MARKED = {
    "README.md": _README,
    "docs/start.md": _README,
    "docs/clients.md": (_CLIENTS, "test_every_command_of_the_page_is_run"),
    "docs/other-languages.md": (_CLIENTS, "test_every_command_of_the_page_is_run"),
    "docs/http.md": _HTTP,
    # These commands are from the beginning of docs/http.md.
    "docs/tools/http-head.md": _HTTP,
    "docs/recipes.md": (
        "tests/integration/docs/test_recipes.py",
        "test_every_block_of_the_page_is_run",
    ),
    "docs/troubleshooting.md": (
        "tests/integration/docs/test_troubleshooting.py",
        "test_every_trouble_that_is_made_is_on_the_page",
    ),
    "docs/virtual-time.md": (
        f"{_ACCEPTANCE}/test_virtual_time.py",
        "test_the_page_works_and_its_data_never_serves_real_time",
    ),
    "docs/orders.md": (
        "tests/acceptance/test_orders.py",
        "test_every_order_ends_right_wherever_its_workers_die",
    ),
    "docs/runbooks/README.md": (
        f"{_DEPLOY}_runbooks.py",
        "test_every_deployment_has_the_functions_that_runbooks_call",
    ),
}

# The beginnings of unmarked blocks and lines, with the test that covers them.
_CERTIFICATES = (
    "tests/unit/settings/test_page_examples.py",
    "test_the_certificates_of_the_page_are_taken_by_the_nodes_they_are_for",
)
_INSTALLED = (f"{_DEPLOY}_systemd.py", "test_the_page_installs_what_systemd_needs")
_IMAGE = (
    f"{_ACCEPTANCE}/docker/test_compose.py",
    "test_a_compose_cluster_serves_through_the_death_of_a_node",
)
_DJANGO = (
    "tests/unit/integrations/test_django_page.py",
    "test_the_pages_snippets_and_commands_work_in_a_new_project",
)
_MOVED_RULES = "test_the_page_says_how_alerts_lead_to_runbooks_kept_elsewhere"
_DRAMATIQ = (
    f"{_ACCEPTANCE}/test_dramatiq.py",
    "test_dramatiq_loses_and_repeats_nothing_while_a_leader_and_a_worker_are_killed",
)
_TASKIQ = (
    f"{_ACCEPTANCE}/test_taskiq.py",
    "test_taskiq_loses_and_repeats_nothing_while_a_leader_and_a_worker_are_killed",
)
_HELD = {
    "docs/celery.md": {
        "celery -A proj import-beat": (
            "tests/unit/integrations/test_celery_beat.py",
            "test_an_import_shows_what_changes_and_is_repeated_in_peace",
        )
    },
    "docs/django.md": {"python manage.py": _DJANGO},
    "docs/dramatiq.md": {"dramatiq app": _DRAMATIQ, "python -c": _DRAMATIQ},
    "docs/security.md": {"openssl req -x509": _CERTIFICATES, "for id in n1": _CERTIFICATES},
    "docs/taskiq.md": {"taskiq worker app:broker": _TASKIQ, "python app.py": _TASKIQ},
    "deploy/README.md": {
        # The same two tests build the image.
        "python3.11 -m venv /opt/": _IMAGE,
        "/opt/codeq-cluster/bin/pip install '.[server]'": _IMAGE,
        "install -m 644 deploy/systemd/": _INSTALLED,
        "install -D -m 644 deploy/systemd/": _INSTALLED,
        "systemd-sysusers": _INSTALLED,
        "install -D -m 640 -g codeq deploy/systemd/": _INSTALLED,
        "install -m 640 -g codeq deploy/systemd/": _INSTALLED,
        "systemd-tmpfiles --create": _INSTALLED,
        "systemctl daemon-reload": _INSTALLED,
        "systemctl enable --now": _INSTALLED,
        "helm install": (f"{_DEPLOY}_helm.py", "test_the_page_installs_and_grows_a_release"),
        "kubectl exec": (f"{_DEPLOY}_helm.py", "test_the_page_installs_and_grows_a_release"),
        "docker build -t codeq-cluster .": _IMAGE,
        "docker compose -p codeq --env-file .env -f deploy/compose/five.yml": (
            f"{_DEPLOY}_compose.py",
            "test_each_node_starts_with_what_its_container_gets",
        ),
        "docker compose up -d prometheus grafana": (
            f"{_DEPLOY}_compose.py",
            "test_what_watches_the_nodes_is_there_when_it_is_asked_for",
        ),
        "install -D -m 644 deploy/prometheus/": (
            f"{_DEPLOY}_prometheus.py",
            "test_prometheus_takes_the_configuration_and_the_rules",
        ),
        "promtool check config": (
            f"{_DEPLOY}_prometheus.py",
            "test_prometheus_takes_the_configuration_and_the_rules",
        ),
        "sed -i": (f"{_DEPLOY}_prometheus.py", _MOVED_RULES),
    },
}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_IN_A_LIST = re.compile(r"^  ", re.MULTILINE)
_LOOP = re.compile(r"^for .*?^done$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(
    r"`((?:\S*/)?codeq-cluster [a-z][^`\n]*|(?:unshare --net )?(?:\S*/)?python -m [^`\n]*)`"
)
_OURS = re.compile(r"(?:\S*/)?(?:codeq-cluster |python -m (?:bench|jepsen_lite|codeq_cluster)\b)")
_TARGET = re.compile(r"make [a-z-]+\b")


class _Understood(Exception):
    """The parser accepted the whole line."""


def _blocks(page: Path) -> list[Block]:
    """Return the blocks of commands, including those within a list."""
    text = _IN_A_LIST.sub("", page.read_text())
    return [block for block in blocks(text) if block.language == "sh"]


def _unmarked(page: Path) -> list[str]:
    """Return the unmarked commands, without comments and with a loop as one command."""
    found = []
    for block in _blocks(page):
        if not block.marks:
            text = block.body.replace("\\\n", " ")
            found += [loop.replace("\n", "; ") for loop in _LOOP.findall(text)]
            lines = (re.sub(r"(^| +)# .*", "", line) for line in _LOOP.sub("", text).split("\n"))
            found += [line for line in lines if line]
    return found


def _inline(page: Path) -> list[str]:
    """Return the complete commands within sentences and tables."""
    return [code for code in _INLINE.findall(_FENCED.sub("", page.read_text())) if "…" not in code]


_LINES = [(str(page.relative_to(ROOT)), line) for page in _PAGES for line in _unmarked(page)]
_TYPED = sorted(
    {line for _, line in _LINES if _OURS.match(line)}
    | {line[line.index("codeq-cluster cluster") :] for _, line in _LINES if "kubectl" in line}
    | {code.removeprefix("unshare --net ") for page in _PAGES for code in _inline(page)}
)
_TARGETS = sorted({line for _, line in _LINES if _TARGET.match(line)})


def _assert_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that the program's own parser accepts the words as a whole or as a group's name."""
    # The rest of the line belongs to the shell; only addresses have a form that can be checked.
    text = re.split(r" [>|\\]", command)[0].replace("URL", "http://127.0.0.1")
    words = shlex.split(re.sub(r"\bN\b", "1", text))
    try:
        _parse(words, monkeypatch)
    except SystemExit:
        with pytest.raises(SystemExit) as ended:
            _parse([*words, "--help"], monkeypatch)
        named_alone = not any(word.startswith("-") for word in words if word != "-m")

        assert named_alone, command
        assert 0 == ended.value.code, command


def _parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a line as its program does, and stop there.

    Raises:
        SystemExit: The line is invalid, or asks for help.
    """
    program, *rest = words
    if program.endswith("codeq-cluster"):
        _parser(rest[:1]).parse_args(rest)
        return
    _, module, *rest = rest
    whole = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, arguments: list[str] | None = None) -> NoReturn:
        whole(parser, arguments)
        raise _Understood

    with monkeypatch.context() as patched, warnings.catch_warnings():
        patched.setattr(argparse.ArgumentParser, "parse_args", parsed)
        patched.setattr(sys, "argv", [module, *rest])
        # Another test may have imported the module already, and it must still run as a program.
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(_Understood):
            runpy.run_module(module, run_name="__main__")


@pytest.mark.parametrize("command", _TYPED)
def test_a_command_of_a_page_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser accepts it as a whole or as the name of a group of commands."""
    _assert_understood(command, monkeypatch)


@pytest.mark.parametrize("command", _TARGETS)
def test_a_program_accepts_the_arguments_of_a_pages_make_target(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module's own parser accepts the arguments that `make` passes on."""
    told = subprocess.run(
        # If the tests run below a `make`, it adds lines about its directory.
        [*shlex.split(command), "--dry-run", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [last] = told.stdout.splitlines()[-1:]

    assert _OURS.match(last), last
    _assert_understood(last, monkeypatch)


def test_every_command_of_a_page_is_held_by_something() -> None:
    """A line that is neither accepted nor listed with its test is untested."""
    nobodys = [
        (page, line)
        for page, line in _LINES
        if not _OURS.match(line)
        and not _TARGET.match(line)
        and not any(line.startswith(begun) for begun in _HELD.get(page, {}))
    ]
    over = [
        (page, begun)
        for page, held in _HELD.items()
        for begun in held
        if not any(line.startswith(begun) for of, line in _LINES if of == page)
    ]

    assert [] == nobodys
    assert [] == over


def test_every_page_with_marked_blocks_has_a_test_that_runs_them() -> None:
    """Runbooks have one test for all of them."""
    marked = {
        str(page.relative_to(ROOT))
        for page in _PAGES
        if any(block.marks for block in _blocks(page))
    }
    runbooks = {page for page in marked if page.startswith("docs/runbooks/")}

    assert _MARKED.keys() == marked - runbooks | {"docs/runbooks/README.md"}


def test_every_test_that_holds_a_command_is_there() -> None:
    """A listed test that no longer exists would cover nothing."""
    named = {
        _RUNBOOKS,
        *_MARKED.values(),
        *(test for held in _HELD.values() for test in held.values()),
    }

    assert [] == [(path, name) for path, name in named if name not in named_in(path)]
