"""Operator commands: programs as workers, and operators' remedies for failed tasks."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import LocalCluster
from tests.harness.commands import Ended, command, commanded
from tests.harness.node_process import ADMIN_TOKEN, OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER_TOKEN = WORKER_TOKENS["worker-0"]
ENDS_WITHIN_S = 60.0


async def _ran(cluster: LocalCluster, *words: str, token: str = ADMIN_TOKEN) -> Ended:
    """Run a command against the cluster until it ends."""
    urls = [word for url in cluster.urls.values() for word in ("--url", url)]
    return await command(*words, *urls, token=token, within_s=ENDS_WITHIN_S)


async def _created(cluster: LocalCluster, event: str, payload: str, *words: str) -> str:
    asked = ("task", "create", "--command", event, "--payload", payload, "-q", *words)
    made = await _ran(cluster, *asked, token=PRODUCER_TOKEN)
    assert 0 == made.code, made.err
    return made.out.strip()


def _worker(
    cluster: LocalCluster, event: str, handler: str, *words: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run `worker start`; kill it if it has not ended."""
    start = ("worker", "start", "--commands", event, "--handler", handler, "--json")
    return commanded(*start, *words, "--url", cluster.urls["n2"], token=WORKER_TOKEN)


async def _handled(cluster: LocalCluster, event: str, handler: str) -> Any:
    """Let a program handle one task and return the worker's output about it."""
    async with asyncio.timeout(ENDS_WITHIN_S), _worker(cluster, event, handler, "--once") as worker:
        out, _ = await worker.communicate()
        assert 0 == worker.returncode
    return json.loads(out)


def _script(directory: Path, text: str) -> str:
    file = directory / "handler.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


async def test_a_shell_script_processes_a_task(cluster: LocalCluster, tmp_path: Path) -> None:
    """The script's output is the result, digit for digit."""
    payload = '{"n": 12345678901234567890}'
    task_id = await _created(cluster, "echo", payload)
    ended = await _handled(cluster, "echo", _script(tmp_path, "cat"))
    found = await _ran(cluster, "task", "result", task_id, "--json", token=PRODUCER_TOKEN)

    assert (task_id, "completed") == (ended["id"], ended["ending"])
    assert payload in found.out
    assert "COMPLETED" == found.document["result"]["status"]
    assert "worker-0" == found.document["task"]["history"][0]["worker"]


async def test_exit_code_100_fails_a_task_for_good(cluster: LocalCluster, tmp_path: Path) -> None:
    """The task does not become a dead letter, and its error is the program's output."""
    task_id = await _created(cluster, "picky", "1")
    ended = await _handled(cluster, "picky", _script(tmp_path, "echo no cat >&2; exit 100"))
    found = await _ran(cluster, "task", "result", task_id, "--json")

    assert "failed" == ended["ending"]
    assert (
        "FAILED",
        "no cat",
    ) == (found.document["result"]["status"], found.document["result"]["error"])
    assert "NONE" == found.document["task"]["lastKnownLocation"]


async def test_a_worker_prints_a_task_as_one_line(cluster: LocalCluster) -> None:
    """The line is the one that the SDK's worker logs."""
    task_id = await _created(cluster, "brief", "1", "--max-attempts", "1")
    asked = (
        "worker",
        "start",
        "--commands",
        "brief",
        "--handler",
        "false",
        "--once",
        "--name",
        "cli",
    )
    ran = await _ran(cluster, *asked, token=WORKER_TOKEN)

    assert 0 == ran.code
    assert re.fullmatch(
        rf"task {task_id} brief: dead in \d+\.\d{{3}} s, attempt 1 of 1, by cli@\S+:\d+: "
        "exit code 1\n",
        ran.out,
    )
    assert "exit code 1" not in ran.err


async def test_a_dead_letter_is_seen_requeued_and_finished(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """An operator sees why it died and confirms the requeue; then the task completes."""
    task_id = await _created(cluster, "broken", '"x"', "--max-attempts", "1")
    died = await _handled(cluster, "broken", _script(tmp_path, "echo disk full >&2; exit 7"))
    listed = await _ran(cluster, "dlq", "ls", "broken", "-q")
    table = await _ran(cluster, "dlq", "ls", "broken")
    inspected = await _ran(cluster, "queue", "inspect", "broken", "--json")
    unsure = await _ran(cluster, "dlq", "requeue", "broken", "--all")
    dry = await _ran(cluster, "dlq", "requeue", "broken", "--all", "--dry-run")
    still = await _ran(cluster, "dlq", "ls", "broken", "-q")
    other = await _ran(cluster, "dlq", "requeue", "broken", "--error", "another", "--yes", "--json")
    sure = await _ran(
        cluster, "dlq", "requeue", "broken", "--error", "exit code 7: disk full", "--yes"
    )
    ended = await _handled(cluster, "broken", _script(tmp_path, "echo repaired"))
    found = await _ran(cluster, "task", "result", task_id, "--json")
    audited = await _ran(cluster, "audit", "--json")

    assert ("dead", "exit code 7: disk full") == (died["ending"], died["note"])
    assert listed.out.split() == still.out.split() == [task_id]
    assert "exit code 7: disk full" in table.out
    assert [{"error": "exit code 7: disk full", "count": 1}] == inspected.document[
        "deadLetterErrors"
    ]
    assert (2, "1") == (unsure.code, unsure.out.strip())
    assert "--yes" in unsure.err
    assert (0, "1") == (dry.code, dry.out.strip())
    assert (0, 0) == (other.code, other.document["requeued"])
    assert (0, "1") == (sure.code, sure.out.strip())
    assert "completed" == ended["ending"]
    assert "repaired" == found.document["result"]["result"]
    assert "dlq.requeue" in {record["action"] for record in audited.document["records"]}


async def test_dead_letters_are_deleted_by_id(cluster: LocalCluster, tmp_path: Path) -> None:
    """The named ones are deleted and the others stay; an id without a dead letter is reported."""
    handler = _script(tmp_path, "exit 1")
    ids = [await _created(cluster, "doomed", "1", "--max-attempts", "1") for _ in range(2)]
    for _ in ids:
        await _handled(cluster, "doomed", handler)
    deleted = await _ran(cluster, "dlq", "delete", "doomed", "--id", ids[0], "--yes")
    left = await _ran(cluster, "dlq", "ls", "doomed", "-q")
    again = await _ran(cluster, "dlq", "delete", "doomed", "--id", ids[0], "--yes")
    gone = await _ran(cluster, "dlq", "show", "doomed", ids[0])

    assert (0, "1") == (deleted.code, deleted.out.strip())
    assert [ids[1]] == left.out.split()
    assert (4, "0") == (again.code, again.out.strip())
    assert 4 == gone.code


async def test_a_paused_queue_says_so_and_goes_on_when_resumed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """`explain` names the pause while it lasts, and its end wakes a waiting worker."""
    task_id = await _created(cluster, "held", "1")
    paused = await _ran(cluster, "queue", "pause", "held")
    why = await _ran(cluster, "task", "explain", task_id, "--json", token=PRODUCER_TOKEN)
    listed = await _ran(cluster, "queue", "ls", "--json")
    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        _worker(cluster, "held", _script(tmp_path, "echo at last"), "--once") as worker,
    ):
        resumed = await _ran(cluster, "queue", "resume", "held")
        out, _ = await worker.communicate()
    after = await _ran(cluster, "task", "explain", task_id, token=PRODUCER_TOKEN)

    assert (0, 0) == (paused.code, resumed.code)
    assert ("queue-paused", True) == (why.document["reason"], why.document["waiting"])
    queues = {row["command"]: row for row in listed.document["queues"]}
    assert (True, 1) == (queues["held"]["paused"], queues["held"]["ready"])
    assert "completed" == json.loads(out)["ending"]
    assert after.out.startswith("completed:")


async def test_a_cancelled_task_takes_its_program_along(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The next heartbeat tells the worker, which ends the program and reports nothing."""
    begun = tmp_path / "begun"
    handler = _script(tmp_path, f"echo $$ > {begun}; exec sleep 1000")
    task_id = await _created(cluster, "endless", "1")

    async def has_begun() -> bool:
        return await asyncio.to_thread(begun.exists)

    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        _worker(cluster, "endless", handler, "--once", "--lease-seconds", "3") as worker,
    ):
        await until(has_begun, what="a program")
        cancelled = await _ran(cluster, "task", "cancel", task_id, "--json", token=PRODUCER_TOKEN)
        out, _ = await worker.communicate()
    again = await _ran(cluster, "task", "cancel", task_id, token=PRODUCER_TOKEN)

    assert {"status": "cancelled", "id": task_id} == cancelled.document
    assert "lost" == json.loads(out)["ending"]
    assert 4 == again.code


async def test_a_stopped_worker_finishes_what_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    """After SIGTERM the program may finish, and the task gets its result."""
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    handler = _script(
        tmp_path, f"touch {begun}; while ! test -e {go_on}; do sleep 0.02; done; echo done"
    )
    task_id = await _created(cluster, "slow", "1")

    async def has_begun() -> bool:
        return await asyncio.to_thread(begun.exists)

    async with asyncio.timeout(ENDS_WITHIN_S), _worker(cluster, "slow", handler) as worker:
        await until(has_begun, what="a program")
        worker.send_signal(signal.SIGTERM)
        go_on.touch()
        out, _ = await worker.communicate()
    found = await _ran(cluster, "task", "result", task_id, "--json")

    assert (0, "completed") == (worker.returncode, json.loads(out)["ending"])
    assert "done" == found.document["result"]["result"]


async def test_a_worker_without_time_left_gives_its_task_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The task is ready again at once, not when its lease ends."""
    begun = tmp_path / "begun"
    handler = _script(tmp_path, f"touch {begun}; exec sleep 1000")
    task_id = await _created(cluster, "long", "1")

    async def has_begun() -> bool:
        return await asyncio.to_thread(begun.exists)

    async with (
        asyncio.timeout(ENDS_WITHIN_S),
        _worker(cluster, "long", handler, "--drain-seconds", "0") as worker,
    ):
        await until(has_begun, what="a program")
        worker.send_signal(signal.SIGTERM)
        out, _ = await worker.communicate()
    found = await _ran(cluster, "task", "get", task_id, "--json")

    assert (0, "abandoned") == (worker.returncode, json.loads(out)["ending"])
    assert ("PENDING", 1) == (found.document["status"], found.document["attempts"])


async def test_a_topic_is_put_read_and_deleted(cluster: LocalCluster) -> None:
    """Fields that are not given return to their defaults, and a deletion needs a confirmation."""
    put = await _ran(cluster, "topic", "put", "ruled", "--max-attempts", "3", "--priorities", "0,5")
    changed = await _ran(cluster, "topic", "put", "ruled", "--weight", "2", "--json")
    listed = await _ran(cluster, "topic", "ls", "-q")
    wrong = await _ran(cluster, "topic", "put", "ruled", "--max-attempts", "999")
    unsure = await _ran(cluster, "topic", "delete", "ruled")
    still = await _ran(cluster, "topic", "get", "ruled", "--json")
    sure = await _ran(cluster, "topic", "delete", "ruled", "--yes")
    gone = await _ran(cluster, "topic", "get", "ruled")

    assert 0 == put.code
    assert (2, None) == (changed.document["version"], changed.document.get("maxAttempts"))
    assert "ruled" in listed.out.split()
    assert (4, 1) == (wrong.code, wrong.err.count("\n"))
    assert 2 == unsure.code
    assert 2 == still.document["weight"]
    assert (0, "ruled") == (sure.code, sure.out.strip())
    assert 4 == gone.code


async def test_a_leadership_goes_where_it_is_sent(cluster: LocalCluster) -> None:
    """`cluster status` then names the new leader."""
    before = await _ran(cluster, "cluster", "status", "--json", token=OPERATOR_TOKEN)
    (shard, *_) = before.document["shards"]
    # A target that is not the preferred leader, to which it would move by itself.
    to = next(node for node in cluster.nodes if node not in {shard["leader"], shard["preferred"]})
    refused = 0

    async def transferred() -> Ended | None:
        nonlocal refused
        # If a peer is briefly behind, the refusal says to try again.
        there = ("cluster", "transfer", "--shard", "0", "--to", to, "--json")
        ran = await _ran(cluster, *there, token=OPERATOR_TOKEN)
        refused += ran.code != 0
        return ran if ran.code == 0 else None

    sent = await until(transferred, what="a transfer")
    asked = ("cluster", "transfer", "--shard", "0", "--to", "n9")
    nobody = await _ran(cluster, *asked, token=OPERATOR_TOKEN)
    table = await _ran(cluster, "cluster", "status", token=OPERATOR_TOKEN)

    assert to == sent.document["leader"]
    # If the first command timed out, the repetition finds the transfer already done.
    assert sent.document["changed"] or refused
    assert 4 == nobody.code
    assert "see codeq-cluster cluster status" in nobody.err
    assert "LEADER" in table.out


async def test_a_doctor_passes_a_healthy_cluster_and_finds_a_fault(cluster: LocalCluster) -> None:
    """Every check of nodes and configuration prints a line, and a bad token is found."""
    config = str(cluster.nodes["n1"].config_path)

    async def finds_nothing() -> Ended | None:
        # No node is ready while a shard changes its leader.
        ran = await _ran(cluster, "doctor", "--config", config, "--json")
        return ran if ran.code == 0 else None

    well = await until(finds_nothing, what="nothing wrong")
    ill = await _ran(cluster, "doctor", "--token", "nobody's")
    spoilt = await _ran(cluster, "doctor", "--config", config, "--set", "raft.selfId=n2")

    checks = {row["check"] for row in well.document["findings"]}
    assert {
        *("reachable", "ready", "version", "token", "clock", "artifacts", "webhooks"),
        *("config", "data", "disk", "durability", "operator", "aside"),
    } == checks
    assert 3 == ill.code
    assert "FAIL" in ill.out
    assert 1 == spoilt.code
    assert "made for cluster acceptance, node n1" in spoilt.out


async def test_dead_letters_of_a_kind_are_requeued_with_another_payload(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The kinds are counted, a dry run shows what the patch does, and the others stay dead."""
    for number in (31, 7):
        payload = json.dumps({"url": "http://old", "n": number})
        await _created(cluster, "patchy", payload, "--max-attempts", "1")
        await _handled(cluster, "patchy", _script(tmp_path, f"echo timeout {number} s >&2; exit 7"))
    other = await _created(cluster, "patchy", '{"n": 1}', "--max-attempts", "1")
    await _handled(cluster, "patchy", _script(tmp_path, "echo no table >&2; exit 7"))
    grouped = await _ran(cluster, "dlq", "ls", "patchy", "--group")
    of_kind = await _ran(cluster, "dlq", "ls", "patchy", "--kind", "exit code 7: timeout 1 s", "-q")
    everywhere = await _ran(cluster, "dlq", "ls", "-q")
    asked = ("dlq", "requeue", "patchy", "--kind", "exit code 7: timeout 1 s")
    patch = ("--patch", '{"url": "http://new"}')
    dry = await _ran(cluster, *asked, *patch)
    done = await _ran(cluster, *asked, *patch, "--yes")
    handled = await _handled(cluster, "patchy", _script(tmp_path, "cat"))
    result = await _ran(cluster, "task", "result", handled["id"], "--json", token=PRODUCER_TOKEN)

    assert "exit code #: timeout # s" in grouped.out
    assert 2 == len(of_kind.out.split())
    assert {*of_kind.out.split(), other} <= set(everywhere.out.split())
    assert (2, "2\n") == (dry.code, dry.out), dry.err
    assert '"url":"http://new"' in dry.err.replace(" ", "")
    assert (0, "2\n") == (done.code, done.out), done.err
    assert "http://new" == result.document["result"]["result"]["url"]
    assert other == (await _ran(cluster, "dlq", "ls", "patchy", "-q")).out.strip()


async def test_a_dead_letter_is_requeued_with_another_payload(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Every digit of it is kept; a preview shows it, and it is for a single dead letter."""
    task_id = await _created(cluster, "replaced", '{"n": 1}', "--max-attempts", "1")
    await _handled(cluster, "replaced", _script(tmp_path, "exit 7"))
    requeue = ("dlq", "requeue", "replaced", "--payload")
    all_of_them = await _ran(cluster, *requeue, "[1.50]", "--all", "--yes")
    no_json = await _ran(cluster, *requeue, "[1,", "--id", task_id, "--yes")
    dry = await _ran(cluster, *requeue, "[1.50]", "--id", task_id, "--dry-run")
    done = await _ran(cluster, *requeue, "[1.50]", "--id", task_id, "--yes")
    found = await _ran(cluster, "task", "get", task_id, "--json")

    assert (2, 2) == (all_of_them.code, no_json.code)
    assert (0, True) == (dry.code, "after: [1.50]" in dry.err), dry.err
    assert (0, "1\n") == (done.code, done.out), done.err
    assert "[1.50]" == found.document["payload"]


async def test_a_misspelt_queue_is_named_with_the_nearest_one(cluster: LocalCluster) -> None:
    """No verb says 0 of a queue that is not there; a pause of one needs --create."""
    await _created(cluster, "invoices", "1")
    for words in (
        ("dlq", "requeue", "invoces", "--all"),
        ("queue", "purge", "invoces"),
        ("task", "list", "--queue", "invoces"),
    ):
        ran = await _ran(cluster, *words)

        assert (4, "") == (ran.code, ran.out)
        assert "there is no queue invoces; did you mean invoices?" in ran.err
    refused = await _ran(cluster, "queue", "pause", "not-yet")
    paused = await _ran(cluster, "queue", "pause", "not-yet", "--create")
    resumed = await _ran(cluster, "queue", "resume", "not-yet")

    assert 4 == refused.code
    assert "--create" in refused.err
    assert (0, 0) == (paused.code, resumed.code)


async def test_a_part_of_an_id_is_enough(cluster: LocalCluster) -> None:
    """A part as the page shows it finds the task; of a wrong one the command says so."""
    task_id = await _created(cluster, "short-id", "1")
    found = await _ran(cluster, "task", "get", f"{task_id[:13]}…", "--json")
    explained = await _ran(cluster, "task", "explain", task_id[:8])
    wrong = await _ran(cluster, "task", "get", "00000000-0000")

    assert task_id == found.document["id"]
    assert (0, True) == (explained.code, ": " in explained.out)
    assert (4, True) == (wrong.code, "not found" in wrong.err)


async def test_a_purge_cancels_what_waits(cluster: LocalCluster) -> None:
    """It counts first, like every verb that destroys."""
    task_id = await _created(cluster, "obsolete", "1")
    dry = await _ran(cluster, "queue", "purge", "obsolete")
    done = await _ran(cluster, "queue", "purge", "obsolete", "--yes", "--json")
    found = await _ran(cluster, "task", "get", task_id, "--json")

    assert (2, "1\n") == (dry.code, dry.out)
    assert 1 == done.document["purged"]
    assert "CANCELLED" == found.document["error"]


@pytest.mark.parametrize(
    ("words", "token", "code"),
    [
        (("queue", "ls"), PRODUCER_TOKEN, 3),
        (("queue", "ls"), OPERATOR_TOKEN, 3),
        (("cluster", "status"), ADMIN_TOKEN, 3),
        (("backup", "create"), ADMIN_TOKEN, 3),
        (("task", "list"), "nobody's", 3),
        (("task", "get", "no-such-task"), ADMIN_TOKEN, 4),
        (("queue", "pause", "no spaces"), ADMIN_TOKEN, 4),
        (("task", "list", "--limit", "0"), ADMIN_TOKEN, 2),
        (("task", "list", "--queue", "never-used"), ADMIN_TOKEN, 4),
        (("delivery", "replay", "--all"), ADMIN_TOKEN, 0),
        (("delivery", "replay", "--id", "none"), ADMIN_TOKEN, 4),
        (("delivery", "replay", "--id", "none", "--yes"), ADMIN_TOKEN, 4),
        (("delivery", "ls"), ADMIN_TOKEN, 0),
        (("aside", "ls"), ADMIN_TOKEN, 0),
        (("aside", "ls", "--ownerless"), ADMIN_TOKEN, 3),
        (("aside", "show", "task.none"), ADMIN_TOKEN, 4),
        (("aside", "retry", "--all"), ADMIN_TOKEN, 0),
        (("aside", "retry", "--id", "task.none", "--yes"), ADMIN_TOKEN, 4),
        (("dlq", "requeue", "never-used", "--all"), ADMIN_TOKEN, 4),
        (("dlq", "delete", "never-used", "--id", "none"), ADMIN_TOKEN, 4),
        (("dlq", "ls", "never-used", "--group"), ADMIN_TOKEN, 4),
        (("queue", "inspect", "never-used"), ADMIN_TOKEN, 4),
        (("queue", "resume", "never-used"), ADMIN_TOKEN, 4),
        (("queue", "purge", "never-used"), ADMIN_TOKEN, 4),
        (("dlq", "ls", "--group"), ADMIN_TOKEN, 0),
    ],
)
async def test_exit_codes_tell_what_went_wrong(
    words: tuple[str, ...], token: str, code: int, cluster: LocalCluster
) -> None:
    """They tell wrong usage, a wrong token and a refusal apart; errors are one line."""
    ran = await _ran(cluster, *words, token=token)

    errors = [line for line in ran.err.splitlines() if line.startswith("codeq-cluster: ")]
    assert code == ran.code, ran.err
    assert (code != 0) == len(errors), ran.err


async def test_a_list_goes_on_where_it_ended(cluster: LocalCluster) -> None:
    """A limit cuts the list, and the cursor on standard error continues it."""
    ids = [await _created(cluster, "many", "1") for _ in range(3)]
    first = await _ran(cluster, "task", "list", "--queue", "many", "-q", "--limit", "2")
    cursor = first.err.split()[-1]
    rest = await _ran(cluster, "task", "list", "--queue", "many", "-q", cursor)

    assert 2 == len(first.out.split())
    assert sorted(ids) == sorted(first.out.split() + rest.out.split())


async def test_a_profile_sends_each_command_s_own_token(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The admin's is refused for the cluster, and the operator's for the queues."""
    kept = {"CODEQ_CONFIG_DIR": str(tmp_path)}
    urls = [word for url in cluster.urls.values() for word in ("--url", url)]
    tokens = ("--token", ADMIN_TOKEN, "--operator-token", OPERATOR_TOKEN)
    made = await command("init", "--no-prompt", *urls, *tokens, variables=kept)
    queues = await command("queue", "ls", "--json", variables=kept)
    status = await command("cluster", "status", "--json", variables=kept)

    assert (0, 0, 0) == (made.code, queues.code, status.code), queues.err + status.err
    assert "queues" in queues.document
    assert set(cluster.nodes) == {node["id"] for node in status.document["nodes"]}
