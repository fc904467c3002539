"""Operations of admins, of operators and of subscriptions: what their handlers take and answer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure
from codeq_cluster.api.http.middleware import Handler
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    DescribedAnswer,
    DescribedOperation,
    Parameter,
)
from codeq_cluster.api.routes import (
    audit,
    backups,
    cluster,
    dead_letters,
    deliveries,
    imports,
    membership,
    queues,
    reads,
    subscriptions,
    task_lists,
    topics,
    upgrading,
    webhooks,
)
from codeq_cluster.api.schemas import paging, requests
from codeq_cluster.backup.manifest import ID
from codeq_cluster.broker.requests.dead_letters import BULK_MAX
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.core.administering import PAUSES_MAX, TOPICS_MAX
from codeq_cluster.core.items import TIER_MAX, TIERS_MAX
from codeq_cluster.errors import LimitExceeded, TooMany
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import NodeSettings

_ID = "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60"
_CURSOR = "q1Zx0cVQcmVzaXplLWltYWdlAAX___5n"
_DEAD = {
    "id": _ID,
    "command": "resize-image",
    "payload": '{"image":"cat.png","width":640}',
    "status": "FAILED",
    "lastKnownLocation": "DLQ_SET",
    "attempts": 5,
    "maxAttempts": 5,
    "error": "MAX_ATTEMPTS",
    "resultKey": f"codeq/results/{_ID}",
    "tenantId": "acme",
    "createdAt": "2026-01-31T12:00:00.000Z",
    "updatedAt": "2026-01-31T12:20:00.000Z",
    "shard": 0,
}
_DEAD_RESULT = {
    "taskId": _ID,
    "status": "FAILED",
    "error": "MAX_ATTEMPTS",
    "completedAt": "2026-01-31T12:20:00.000Z",
}
_TASKS = {"tasks": [_DEAD], "cursor": _CURSOR}
_POLICY = {
    "priorityTiers": [0, 5, 9],
    "maxAttempts": 5,
    "deadLetterTopicRef": "images-dead",
    "retentionSeconds": 3600,
    "maxConsumers": 20,
    "weight": 3,
}
_TOPIC = {
    **_POLICY,
    "name": "resize-image",
    "version": 2,
    "createdAt": "2026-01-31T12:00:00.000Z",
    "updatedAt": "2026-01-31T12:30:00.000Z",
    "topicId": "acme.resize-image",
    "topicName": "resize-image",
    "tenantId": "acme",
    "policy": _POLICY,
}
_DELIVERY = {
    "id": f"{_ID}.1",
    "taskId": _ID,
    "command": "resize-image",
    "url": "https://example.com/done",
    "status": "dead",
    "attempts": 5,
    "error": "HTTP 500",
    "createdAt": "2026-01-31T12:00:09.000Z",
    "diedAt": "2026-01-31T12:01:00.000Z",
}
_AUDIT = {
    "id": "000998230052800000-5f0c4a2e9b7d4c1f8e3a6b2d1c0f9e8d",
    "at": "2026-01-31T12:30:00.000Z",
    "actor": "ops@example.com",
    "action": "topic.put",
    "target": "resize-image",
    "detail": "version 2",
    "index": 1042,
}
_SUBSCRIPTION = {
    "subscriptionId": "7d1f0a52-93c1-4f0e-8b0b-2f9a2f0c4d11",
    "workerId": "worker-7",
    "callbackUrl": "https://worker-7.example.com/wake",
    "eventTypes": ["resize-image"],
    "deliveryMode": "group",
    "groupId": "resizers",
    "ttlSeconds": 300,
    "minIntervalSeconds": 5,
    "createdAt": "2026-01-31T12:00:00.000Z",
    "expiresAt": "2026-01-31T12:05:00.000Z",
}
_BACKUP_ID = "20260131T123000000Z-5f0c4a2e"
_BACKUP = {
    "id": _BACKUP_ID,
    "node": "n1",
    "status": "WRITING",
    "shards": 8,
    "shardsDone": 3,
    "bytes": 73400320,
    "tasks": 0,
    "startedAt": "2026-01-31T12:30:00.000Z",
    "deleted": [],
}
_KEPT_BACKUP = {
    "id": _BACKUP_ID,
    "startedAt": "2026-01-31T12:30:00.000Z",
    "complete": True,
    "clusterId": "orders",
    "node": "n1",
    "shards": 8,
    "tasks": 120000,
    "bytes": 195035136,
}
_IMPORTED = {
    "imported": 120,
    "present": 7,
    "ended": 0,
    "forgottenKeys": 0,
    "keysTaken": [_ID],
    "keysApart": [],
    "idsTaken": [],
    "tooLarge": [],
    "left": 0,
    "limit": "",
    "itemsImported": 2,
    "itemsPresent": 0,
    "itemsRefused": [],
    "dryRun": False,
}
_LIFE = {
    "subscriptionId": _SUBSCRIPTION["subscriptionId"],
    "expiresAt": "2026-01-31T12:05:00.000Z",
}
_CLUSTER = {
    "clusterId": "orders",
    "level": 1,
    "nodes": [
        {
            "id": "n1",
            "addr": "10.0.0.1:7000",
            "httpAddr": "http://10.0.0.1:8080",
            "self": True,
            "connected": True,
            "voter": True,
            "level": 1,
            "leads": [0],
        }
    ],
    "shards": [
        {
            "shard": 0,
            "leader": "n1",
            "preferred": "n1",
            "changing": False,
            "level": 1,
            "term": 3,
            "commitIndex": 1042,
            "appliedIndex": 1042,
            "peers": [{"id": "n2", "voter": True, "connected": True, "matchIndex": 1042}],
        }
    ],
}

_NOT_FOUND = ApiError(404, "not-found", "not-found")
_TASK_NOT_FOUND = ApiError(404, "task not found", "not-found")
_INVALID_COMMAND = bad_request("invalid command", "invalid-command")
_INVALID_STATUS = bad_request("invalid status", "invalid-status")
_LIMIT_TOO_SMALL = bad_request("invalid 'limit' (must be >= 1)", "out-of-range")
_NO_INTEGER = bad_request("invalid 'limit' (use an integer)", "invalid-query")
_NO_FLAG = bad_request("invalid 'dryRun' (use true or false)", "invalid-query")
_PAGED = (
    _NO_INTEGER,
    _LIMIT_TOO_SMALL,
    bad_request(f"invalid 'limit' (must be <= {paging.COUNT_MAX})", "out-of-range"),
    bad_request("invalid 'cursor'", "invalid-cursor"),
)
_IDS = (
    bad_request("invalid 'ids' (name at least one)", "invalid-ids"),
    bad_request(f"invalid 'ids' (at most {dead_letters.IDS_MAX})", "out-of-range"),
)
_BULK = (
    dead_letters.EMPTY_ERROR,
    _INVALID_COMMAND,
    *_IDS,
    _NO_INTEGER,
    _LIMIT_TOO_SMALL,
    bad_request(f"invalid 'limit' (must be <= {BULK_MAX})", "out-of-range"),
    _NO_FLAG,
    dead_letters.unknown_name("id"),
)


def _query(name: str, text: str, **schema: object) -> Parameter:
    return Parameter(name=name, place="query", text=text, schema={"type": "string"} | schema)


_ERROR = _query("error", "Only those with exactly this error.")
_THIS_ERROR = _query("error", "Only those with exactly this error.", minLength=1)
_DRY_RUN = _query("dryRun", "`true` only counts.", type="boolean", default=False)
_PAGE = (
    _query(
        "limit",
        "Entries at most.",
        type="integer",
        minimum=1,
        maximum=paging.COUNT_MAX,
        default=paging.COUNT_DEFAULT,
    ),
    _query("cursor", "Of the page before, as it was answered."),
)
_SELECTION = (
    _query(
        "ids",
        "Separated by commas; the body's win, as with the others.",
        pattern=f"^{COMMAND.pattern}(,{COMMAND.pattern})*$",
    ),
    _THIS_ERROR,
    _query("limit", "Tasks at most, the newest.", type="integer", minimum=1, maximum=BULK_MAX),
    _DRY_RUN,
)


def operations(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    """Return what each of these handlers takes and answers on a node of these settings."""
    return {
        **_on_dead_letters(),
        **_on_tasks(),
        **_on_queues(),
        **_on_deliveries(),
        **_on_the_cluster(settings),
        **_on_members(),
        **_on_backups(),
        **_on_imports(settings),
        **_on_subscriptions(),
    }


def _on_dead_letters() -> dict[Handler, DescribedOperation]:
    requeued = _done("requeued")
    deleted = _done("deleted")
    example = {"error": "MAX_ATTEMPTS", "limit": 100, "dryRun": True}
    one = (_INVALID_COMMAND, _TASK_NOT_FOUND, _NO_FLAG)
    return {
        dead_letters.dead_letters: DescribedOperation(
            parameters=(
                _query("groupBy", "`error` counts what they died of instead.", enum=["error"]),
                _ERROR,
                *_PAGE,
            ),
            answers=(DescribedAnswer(text="A page, or the groups.", example=_TASKS),),
            errors=(
                _INVALID_COMMAND,
                bad_request("invalid 'groupBy' (use error)", "invalid-query"),
                *_PAGED,
            ),
        ),
        dead_letters.dead_letter: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The dead letter.",
                    example={"task": _DEAD, "result": _DEAD_RESULT},
                ),
            ),
            errors=(_INVALID_COMMAND, _TASK_NOT_FOUND),
        ),
        dead_letters.requeue: DescribedOperation(
            body=requests.SelectionBody,
            body_may_miss=True,
            example=example,
            parameters=_SELECTION,
            answers=(requeued,),
            errors=_BULK,
        ),
        dead_letters.delete: DescribedOperation(
            body=requests.SelectionBody,
            body_may_miss=True,
            example=example,
            parameters=_SELECTION,
            answers=(deleted,),
            errors=_BULK,
        ),
        dead_letters.requeue_one: DescribedOperation(
            parameters=(_DRY_RUN,), answers=(requeued,), errors=one
        ),
        dead_letters.delete_one: DescribedOperation(
            parameters=(_DRY_RUN,), answers=(deleted,), errors=one
        ),
    }


def _on_tasks() -> dict[Handler, DescribedOperation]:
    return {
        task_lists.tasks: DescribedOperation(
            parameters=(
                _query("command", "Only this queue's.", pattern=COMMAND_SCHEMA["pattern"]),
                _query(
                    "status", "Only these.", enum=[status for status in task_lists.PLACES if status]
                ),
                _ERROR,
                *_PAGE,
            ),
            answers=(DescribedAnswer(text="A page.", example=_TASKS),),
            errors=(_INVALID_COMMAND, _INVALID_STATUS, *_PAGED),
        ),
        task_lists.cleanup: DescribedOperation(
            body=requests.CleanupBody,
            body_may_miss=True,
            example={"limit": 100, "before": "2026-01-31T12:00:00Z"},
            answers=(
                DescribedAnswer(
                    text="What was done, with the bounds that held.",
                    example={"deleted": 17, "before": "2026-01-31T12:00:00.000Z", "limit": 100},
                ),
            ),
            errors=(
                bad_request("invalid 'before' (use RFC3339)", "invalid-before"),
                bad_request("invalid 'before' (must not be in the future)", "invalid-before"),
                from_failure(
                    LimitExceeded(scope=Scope.ADMIN, operation="cleanup", retry_after_s=1)
                ),
            ),
        ),
        reads.explain: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The reason.",
                    example={
                        "taskId": _ID,
                        "reason": "backing-off",
                        "message": "attempt 2 of 5 was given back; it backs off",
                        "waiting": True,
                        "until": "2026-01-31T12:00:40.000Z",
                    },
                ),
            ),
            errors=(_TASK_NOT_FOUND,),
        ),
    }


def _on_queues() -> dict[Handler, DescribedOperation]:
    invalid = tuple(
        _field(name, message)
        for name, message in (
            ("topicName", "must be a command: 1 to 128 of A-Za-z0-9._:-"),
            ("owner", "unknown field"),
            ("priorityTiers", f"must contain between 1 and {TIERS_MAX} priorities"),
            (
                "priorityTiers",
                f"priorities must be integers from 0 through {TIER_MAX}",
            ),
            ("priorityTiers", "priorities must be unique"),
            *(
                (name, f"must be between {least} and {most}")
                for name, (least, most) in topics.BOUNDS.items()
            ),
            ("deadLetterTopicRef", "must be a DNS label with at most 63 characters"),
            ("deadLetterTopicRef", "must differ from topicName"),
        )
    )
    shown = partial(DescribedAnswer, example=_TOPIC)
    return {
        queues.pause: DescribedOperation(
            answers=(_turned(paused=True),),
            errors=(_INVALID_COMMAND, from_failure(TooMany("paused queues", PAUSES_MAX))),
        ),
        queues.resume: DescribedOperation(
            answers=(_turned(paused=False),),
            errors=(_INVALID_COMMAND,),
        ),
        topics.topics: DescribedOperation(
            parameters=_PAGE,
            answers=(DescribedAnswer(text="A page.", example={"topics": [_TOPIC]}),),
            errors=_PAGED,
        ),
        topics.topic: DescribedOperation(
            answers=(shown(text="The topic."),),
            errors=(
                invalid[0],
                ApiError(404, 'queue topic "acme.resize-image" not found', "not-found"),
            ),
        ),
        topics.put: DescribedOperation(
            body=requests.TopicBody,
            example=_POLICY,
            answers=(
                shown(text="It stands, changed or as it was."),
                shown(text="It is made.", status=201),
            ),
            errors=(*invalid, from_failure(TooMany("topics", TOPICS_MAX))),
        ),
        topics.delete: DescribedOperation(
            parameters=(
                replace(
                    _query("deletionPolicy", "Must be `Delete`.", enum=["Delete"]), required=True
                ),
            ),
            answers=(DescribedAnswer(status=204, text="It is gone."),),
            errors=(
                bad_request("deletionPolicy=Delete is required", "deletion-policy-required"),
                invalid[0],
            ),
        ),
    }


def _on_deliveries() -> dict[Handler, DescribedOperation]:
    replayed = DescribedAnswer(text="So many are pending again.", example={"replayed": 3})
    return {
        deliveries.deliveries: DescribedOperation(
            parameters=(_query("status", "Only these.", enum=["dead", "pending"]), *_PAGE),
            answers=(DescribedAnswer(text="A page.", example={"deliveries": [_DELIVERY]}),),
            errors=(_INVALID_STATUS, *_PAGED),
        ),
        deliveries.replay: DescribedOperation(
            body=requests.ReplayBody,
            example={"ids": [_DELIVERY["id"]]},
            answers=(replayed,),
            errors=(bad_request("ids or all required", "ids-required"), *_IDS),
        ),
        deliveries.replay_one: DescribedOperation(
            answers=(replayed,), errors=(ApiError(404, "delivery not found", "not-found"),)
        ),
        audit.audit: DescribedOperation(
            parameters=_PAGE,
            answers=(
                DescribedAnswer(
                    text="A page.",
                    example={"records": [_AUDIT], "cursor": _CURSOR},
                ),
            ),
            errors=_PAGED,
        ),
    }


def _on_the_cluster(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    return {
        cluster.cluster: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The nodes and the shards.",
                    example=_CLUSTER,
                ),
            ),
            replicated=False,
        ),
        cluster.transfer: DescribedOperation(
            body=requests.TransferBody,
            example={"shard": 0, "to": "n2"},
            answers=(
                DescribedAnswer(
                    text="The leader is the one that was asked for; `changed` unless it was.",
                    example={"shard": 0, "from": "n1", "leader": "n2", "changed": True},
                ),
            ),
            errors=(
                bad_request(f"invalid 'shard' (use 0 to {settings.shards - 1})", "out-of-range"),
                bad_request("invalid 'to' (no such node)", "no-such-node"),
                ApiError(409, "leadership not transferred", "not-transferred", retryable=True),
            ),
        ),
    }


def _on_members() -> dict[Handler, DescribedOperation]:
    def shown(voters_after: list[str], learners_after: list[str]) -> DescribedAnswer:
        return DescribedAnswer(
            text="Every shard has agreed, or would; asked again, nothing changes.",
            example={
                "nodeId": "n4",
                "dryRun": False,
                "changed": True,
                "shards": [
                    {
                        "shard": 0,
                        "leader": "n1",
                        "voters": ["n1", "n2", "n3"],
                        "votersAfter": voters_after,
                        "learnersAfter": learners_after,
                        "quorum": 2,
                        "quorumAfter": len(voters_after) // 2 + 1,
                        "answering": len(voters_after),
                        "done": True,
                    }
                ],
            },
        )

    return {
        membership.join: DescribedOperation(
            body=requests.JoinBody,
            example={"nodeId": "n4", "addr": "10.0.0.4:7000", "httpAddr": "http://10.0.0.4:8080"},
            answers=(shown(["n1", "n2", "n3"], ["n4"]),),
            errors=membership.JOIN_REFUSALS,
        ),
        membership.remove: DescribedOperation(
            body=requests.RemoveBody,
            example={"nodeId": "n3"},
            answers=(shown(["n1", "n2"], []),),
            errors=membership.REMOVE_REFUSALS,
        ),
        upgrading.upgrade: DescribedOperation(
            body=requests.UpgradeBody,
            body_may_miss=True,
            example={"dryRun": True},
            answers=(
                DescribedAnswer(
                    text="Every shard has agreed, or would; asked again, nothing changes.",
                    example={
                        "level": 2,
                        "dryRun": False,
                        "changed": True,
                        "shards": [
                            {"shard": 0, "leader": "n1", "level": 1, "levelAfter": 2, "done": True}
                        ],
                        "nodes": [{"id": "n1", "level": 2}],
                    },
                ),
            ),
            errors=upgrading.REFUSALS,
        ),
    }


def _on_backups() -> dict[Handler, DescribedOperation]:
    shown = partial(DescribedAnswer, example=_BACKUP)
    return {
        backups.create: DescribedOperation(
            answers=(shown(status=202, text="It has begun; ask this node how far it is."),),
            errors=(backups.NO_PLACE, backups.RUNNING),
            replicated=False,
        ),
        backups.backup: DescribedOperation(
            answers=(shown(text="How far it is."),),
            errors=(backups.NOT_FOUND, backups.NO_PLACE, backups.UNREACHABLE),
            replicated=False,
        ),
        backups.backups: DescribedOperation(
            answers=(DescribedAnswer(text="All there are.", example={"backups": [_KEPT_BACKUP]}),),
            errors=(backups.NO_PLACE, backups.UNREACHABLE),
            replicated=False,
        ),
    }


def _on_imports(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    most = imports.bytes_max(settings.raft.entry_bytes_max)
    return {
        imports.take: DescribedOperation(
            binary=True,
            parameters=(
                replace(
                    _query(
                        "backup",
                        "The backup it comes from, for the record.",
                        pattern=f"^{ID.pattern}$",
                    ),
                    required=True,
                ),
                replace(
                    _query("tenant", "The token's tenant once more, `_` for the default tenant."),
                    required=True,
                ),
                _query(
                    "forgetKeys",
                    "Take tasks over without an idempotency key that cannot be kept.",
                    type="boolean",
                ),
                _query("dryRun", "Only say what would become of it.", type="boolean"),
                _query(
                    "level",
                    "Of the formats of the backup; default: 1.",
                    type="integer",
                    minimum=1,
                    maximum=LEVEL_MAX,
                ),
            ),
            answers=(DescribedAnswer(text="What became of it.", example=_IMPORTED),),
            errors=(
                imports.INVALID_BACKUP,
                imports.OTHER_TENANT,
                imports.INVALID_LEVEL,
                imports.NEWER_FORMATS,
                imports.MALFORMED,
                imports.TOO_MANY,
                ApiError(413, f"request body exceeds {most} bytes", "body-too-large"),
                ApiError(408, "request timeout", "request-timeout", retryable=True),
            ),
        ),
    }


def _on_subscriptions() -> dict[Handler, DescribedOperation]:
    life = DescribedAnswer(text="It lives until then.", example=_LIFE)
    ttl = (
        bad_request("invalid 'ttlSeconds' (must be >= 0)", "out-of-range"),
        bad_request(f"invalid 'ttlSeconds' (must be <= {subscriptions.TTL_MAX_S})", "out-of-range"),
    )
    return {
        subscriptions.subscribe: DescribedOperation(
            body=requests.SubscriptionBody,
            example={
                "callbackUrl": _SUBSCRIPTION["callbackUrl"],
                "eventTypes": ["resize-image"],
                "deliveryMode": "group",
                "groupId": "resizers",
            },
            answers=(life,),
            errors=(
                webhooks.NOT_CONFIGURED,
                bad_request("invalid callback url", "invalid-callback-url"),
                bad_request("invalid deliveryMode", "invalid-delivery-mode"),
                bad_request("groupId is required", "group-id-required"),
                bad_request(
                    f"invalid 'groupId' (at most {subscriptions.GROUP_BYTES_MAX} bytes)",
                    "out-of-range",
                ),
                bad_request(
                    f"invalid 'eventTypes' (at most {subscriptions.EVENT_TYPES_MAX})",
                    "out-of-range",
                ),
                ApiError(403, "event type not allowed", "event-type-not-allowed"),
                subscriptions.TOO_MANY,
                _INVALID_COMMAND,
                bad_request("invalid 'minIntervalSeconds' (must be >= 0)", "out-of-range"),
                bad_request(
                    f"invalid 'minIntervalSeconds' (must be <= {subscriptions.INTERVAL_MAX_S})",
                    "out-of-range",
                ),
                *ttl,
            ),
        ),
        subscriptions.renew: DescribedOperation(
            body=requests.RenewalBody,
            body_may_miss=True,
            example={"ttlSeconds": 600},
            answers=(life,),
            errors=(webhooks.NOT_CONFIGURED, _NOT_FOUND, *ttl),
        ),
        subscriptions.subscriptions: DescribedOperation(
            parameters=_PAGE,
            answers=(
                DescribedAnswer(
                    text="A page.",
                    example={"subscriptions": [_SUBSCRIPTION]},
                ),
            ),
            errors=_PAGED,
        ),
        subscriptions.unsubscribe: DescribedOperation(
            answers=(DescribedAnswer(status=204, text="It has ended."),), errors=(_NOT_FOUND,)
        ),
    }


def _done(word: str) -> DescribedAnswer:
    return DescribedAnswer(
        text=f"How many were found, and how many of them were {word}; `more` when some are left.",
        example={
            "matched": 2,
            word: 2,
            "byError": {"MAX_ATTEMPTS": 2},
            "more": False,
            "dryRun": False,
        },
    )


def _turned(*, paused: bool) -> DescribedAnswer:
    return DescribedAnswer(
        text="Every shard's leader goes by it; `changed` unless it was so before.",
        example={"command": "resize-image", "paused": paused, "changed": True},
    )


def _field(name: str, message: str) -> ApiError:
    return ApiError(422, f"invalid {name}: {message}", "invalid-field", extra={"field": name})
