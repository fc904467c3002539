"""Examples: the body and query of each request in the HTTP reference, and the task it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMMAND = "resize-image"
ARTIFACT = "thumbnail.png"
# The values of a path's parameters; a name in capitals is a variable of the shell.
PATH: Mapping[str, str] = {
    "command": COMMAND,
    "name": COMMAND,
    "artifact": ARTIFACT,
    "upload": "$UPLOAD",
    "signal": "return",
    "key": "customer-7",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One request.

    Attributes:
        body: JSON text, `@` and a file, or empty for none.
        query: Without the question mark.
        id: The variable of the shell for the path's id.
        task: The state of `$TASK` in which the request succeeds; empty for any, or if there is
            no task.
    """

    body: str = ""
    query: str = ""
    id: str = "$TASK"
    task: str = ""


_BODY = f'{{"command":"{COMMAND}","payload":{{"image":"cat.png"}}}}'
_CLAIM = f'"commands":["{COMMAND}"],"leaseSeconds":60,"waitSeconds":5'
_DONE = '"status":"COMPLETED","result":{"width":640}'
_NODE = '"nodeId":"n4"'
_SELECTION = '{"error":"MAX_ATTEMPTS","limit":100,"dryRun":true}'
_TIMES = '"cron":"30 2 * * MON-FRI","zone":"Europe/Berlin"'
_REPORT = '"command":"report","payload":{"region":"eu"}'
_RUN = f'"task":{{{_REPORT}}}'
_SET = Example(
    query="owner=reports-app",
    body=f'{{"schedules":[{{"id":"nightly-report",{_TIMES},{_RUN}}}],"revision":7}}',
)
_SCHEDULE = Example(task="with a schedule")
_GROUP = Example(id="$GROUP", task="with a group")
_BULK = Example(id="$BULK", task="with a bulk job")
_SUBSCRIPTION = Example(id="$SUBSCRIPTION")

# By operation; an operation without an entry needs only its path.
EXAMPLES: Mapping[str, Example] = {
    "tasks_create": Example(body=_BODY[:-1] + ',"idempotencyKey":"cat-640"}'),
    "tasks_create_batch": Example(body=f'{{"tasks":[{_BODY},{_BODY}]}}'),
    "tasks_cancel": Example(task="ready"),
    "tags_change_tags": Example(body='{"set":{"env":"prod"},"remove":["draft"]}', task="ready"),
    "workers_claim": Example(body=f"{{{_CLAIM}}}", task="ready"),
    "workers_claim_batch": Example(body=f'{{"count":10,{_CLAIM}}}', task="ready"),
    "workers_heartbeat": Example(body='{"extendSeconds":60}', task="leased"),
    "workers_abandon": Example(task="leased"),
    "workers_reject": Example(task="leased", body='{"reason":"no such customer: 42"}'),
    "workers_nack": Example(
        body='{"delaySeconds":30,"reason":"the bank is closed"}', task="leased"
    ),
    "keys_put": Example(body='{"maxRunning":2,"weight":3}'),
    "steps_record": Example(
        body='{"name":"charge","value":{"charge":"ch-7"},"position":1}', task="leased"
    ),
    "steps_park": Example(
        body='{"step":"return","signal":"return","forSeconds":1209600}', task="leased"
    ),
    "steps_signal": Example(body='{"payload":{"why":"too small"}}', task="ready"),
    "steps_steps": Example(task="ready"),
    "logs_log": Example(query="after=0", task="ready"),
    "workers_submit": Example(body=f"{{{_DONE}}}", task="leased"),
    "workers_heartbeats": Example(
        body='{"leases":[{"id":"\'$TASK\'","extendSeconds":60}],"waitSeconds":1}', task="leased"
    ),
    "workers_submit_batch": Example(
        body=f'{{"results":[{{"taskId":"\'$TASK\'",{_DONE}}}]}}', task="leased"
    ),
    "uploads_upload": Example(body=f"@{ARTIFACT}", task="leased"),
    "reads_ids": Example(query="idPrefix=69d30922-9151"),
    "events_events": Example(query=f"command={COMMAND}&waitSeconds=0"),
    "reads_task": Example(task="ready"),
    "reads_explain": Example(task="ready"),
    "reads_result": Example(query="waitSeconds=10", task="done"),
    "downloads_download": Example(task="with an artifact"),
    "downloads_describe": Example(task="with an artifact"),
    "subscriptions_subscribe": Example(
        body=f'{{"callbackUrl":"http://127.0.0.1:9000/wake","eventTypes":["{COMMAND}"]}}'
    ),
    "subscriptions_renew": _SUBSCRIPTION,
    "subscriptions_unsubscribe": _SUBSCRIPTION,
    "dead_letters_dead_letters": Example(query="groupBy=error"),
    "dead_letters_dead_letter": Example(task="dead"),
    "dead_letters_requeue": Example(body=_SELECTION),
    "dead_letters_delete": Example(body=_SELECTION),
    "dead_letters_requeue_one": Example(task="dead"),
    "dead_letters_delete_one": Example(task="dead"),
    "task_lists_tasks": Example(query=f"command={COMMAND}&status=PENDING&limit=20"),
    "task_lists_cleanup": Example(body='{"limit":100,"before":"2026-01-31T12:00:00Z"}'),
    "bulk_start": Example(
        body='{"select":{"tag":["user:42"],"status":"PENDING"},"action":"cancel","dryRun":true}'
    ),
    "bulk_job": _BULK,
    "bulk_stop": _BULK,
    "topics_topic": Example(task="with a topic"),
    "topics_put": Example(body='{"maxAttempts":8,"maxConsumers":20,"retentionSeconds":3600}'),
    "topics_delete": Example(query="deletionPolicy=Delete", task="with a topic"),
    "limits_get": Example(task="with a limit"),
    "limits_put": Example(body='{"maxRunning":20,"rate":{"count":100,"perSeconds":60}}'),
    "graphs_create": Example(
        body=f'{{"tasks":[{{"ref":"a",{_REPORT}}},{{"ref":"b",{_REPORT},"dependsOn":["a"]}}]}}'
    ),
    "graphs_neighbours": Example(task="ready"),
    "groups_create": Example(
        body=f'{{"id":"import-7","then":{{{_REPORT}}},"tasks":[{_BODY},{_BODY}],"seal":true}}'
    ),
    "groups_add": Example(body=f'{{"tasks":[{_BODY}]}}', id="$GROUP", task="with a group"),
    "groups_seal": _GROUP,
    "groups_cancel": _GROUP,
    "groups_group": _GROUP,
    "groups_results": _GROUP,
    "schedules_preview": Example(body=f'{{{_TIMES},"count":2}}'),
    "schedules_put_set": _SET,
    "schedules_put_own_set": _SET,
    "schedules_schedule": _SCHEDULE,
    "schedules_put": Example(body=f"{{{_TIMES},{_RUN}}}", task="with a schedule"),
    "schedules_delete": _SCHEDULE,
    "schedules_pause": _SCHEDULE,
    "schedules_resume": Example(body='{"catchUp":true}', task="with a schedule"),
    "schedules_trigger": Example(
        body='{"idempotencyKey":"report-now","overlap":"allow"}', task="with a schedule"
    ),
    "schedules_backfill": Example(
        body='{"from":"2026-03-01T00:00:00Z","to":"2026-03-31T00:00:00Z","dryRun":true}',
        task="with a schedule",
    ),
    "deliveries_deliveries": Example(query="status=dead"),
    "deliveries_replay": Example(body='{"all":true}'),
    "deliveries_replay_one": Example(id="$DELIVERY"),
    "webhook_keys_rotate": Example(body='{"overlapSeconds":86400}'),
    "asides_retry": Example(body='{"all":true}'),
    "asides_retry_ownerless": Example(body='{"all":true}'),
    "cluster_transfer": Example(body='{"shard":0,"to":"n1"}'),
    "membership_join": Example(
        body=f'{{{_NODE},"addr":"10.0.0.4:7000","httpAddr":"http://10.0.0.4:8080","dryRun":true}}'
    ),
    "membership_remove": Example(body=f'{{{_NODE},"dryRun":true}}'),
    "upgrading_upgrade": Example(body='{"dryRun":true}'),
    "backups_backup": Example(id="$BACKUP"),
    "imports_take": Example(
        query="backup=20260131T123000000Z-5f0c4a2e&tenant=_", body="@part.cbor"
    ),
}
