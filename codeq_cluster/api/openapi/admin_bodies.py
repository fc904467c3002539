"""Bodies that admins, operators and subscribers send: what their types do not say of them."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.openapi.types import COMMAND_SCHEMA, Fields
from codeq_cluster.api.routes import dead_letters, subscriptions, task_lists, topics
from codeq_cluster.api.schemas import requests
from codeq_cluster.broker.requests.dead_letters import BULK_MAX
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.codec.membership import ADDRESS, HTTP_ADDRESS, NODE_ID
from codeq_cluster.core.items import TIER_MAX, TIERS_MAX, Mode
from codeq_cluster.settings import NodeSettings

_NODE_ID = f"^{NODE_ID.pattern}$"


def fields(settings: NodeSettings) -> dict[type[Struct], Fields]:
    """Return what these bodies' types do not say, on a node of these settings."""
    # What a task can be called is what a command can be.
    ids = {"minItems": 1, "maxItems": dead_letters.IDS_MAX, "items": COMMAND_SCHEMA}
    return {
        requests.SelectionBody: Fields(
            known={
                "ids": _said("These alone; absent for all.", **ids),
                "error": _said("Only those with exactly this error.", minLength=1),
                "limit": _said(
                    f"Tasks at most, the newest; {BULK_MAX} when absent.",
                    minimum=1,
                    maximum=BULK_MAX,
                ),
                "dryRun": _said("Only count."),
            },
            strict=True,
        ),
        requests.CleanupBody: Fields(
            known={
                "limit": _said(
                    f"Tasks at most: {task_lists.CLEANUP_DEFAULT} for 0 or less, never more than "
                    f"{task_lists.CLEANUP_MAX}."
                ),
                "before": _said(
                    "Delete what ended before, kept or not; RFC 3339, not in the future. Absent: "
                    "what is not to be kept any longer.",
                    format="date-time",
                ),
            }
        ),
        requests.TopicBody: Fields(known=_policy_fields(), strict=True),
        requests.ReplayBody: Fields(
            known={
                "ids": _said("These deliveries.", **ids),
                "all": _said("Every dead one; needed when no `ids` are named."),
            }
        ),
        requests.TransferBody: Fields(
            required=("shard",),
            known={
                "shard": _said("Its number.", minimum=0, maximum=settings.shards - 1),
                "to": _said("Id of a node; absent for whichever has most of the log."),
            },
        ),
        requests.JoinBody: Fields(
            required=("nodeId", "addr", "httpAddr"),
            known={
                "nodeId": _said("Its id.", pattern=_NODE_ID),
                "addr": _said(
                    "Where the other nodes reach it, host:port.",
                    pattern=f"^{ADDRESS.pattern}$",
                ),
                "httpAddr": _said("Where callers reach it.", pattern=f"^{HTTP_ADDRESS.pattern}$"),
                "dryRun": _said("Say what it would do to each shard, and change nothing."),
            },
        ),
        requests.RemoveBody: Fields(
            required=("nodeId",),
            known={
                "nodeId": _said("Its id.", pattern=_NODE_ID),
                "dryRun": _said("Say what it would do to each shard, and change nothing."),
            },
        ),
        requests.UpgradeBody: Fields(
            known={
                "level": _said(
                    "Of the formats to use; the newest that any node knows when absent.",
                    minimum=1,
                    maximum=LEVEL_MAX,
                ),
                "dryRun": _said("Say what it would do to each shard, and change nothing."),
            },
        ),
        requests.SubscriptionBody: Fields(
            required=("callbackUrl",),
            known={
                "callbackUrl": _said(
                    "URL of http or https, on a public address.", format="uri", minLength=1
                ),
                "eventTypes": _said(
                    "Commands, each allowed by the token; absent or empty for all of the token's.",
                    maxItems=subscriptions.EVENT_TYPES_MAX,
                    items=COMMAND_SCHEMA,
                ),
                "ttlSeconds": _said(
                    f"It ends after so long; {subscriptions.TTL_DEFAULT_S} for 0.",
                    minimum=0,
                    maximum=subscriptions.TTL_MAX_S,
                ),
                "deliveryMode": _said(
                    "Whom a notice goes to: every subscription, one of each group in turn, or one "
                    "by rendezvous hash; `fanout` when absent.",
                    enum=["", *(mode.value for mode in Mode), None],
                ),
                "groupId": _said(
                    f"Required by the mode `group`; at most {subscriptions.GROUP_BYTES_MAX} bytes."
                ),
                "minIntervalSeconds": _said(
                    "Between two notices; "
                    f"{settings.webhooks.subscription_min_interval_seconds} when absent.",
                    minimum=0,
                    maximum=subscriptions.INTERVAL_MAX_S,
                ),
            },
        ),
        requests.RenewalBody: Fields(
            known={
                "ttlSeconds": _said(
                    "It ends after so long; as long as before for 0.",
                    minimum=0,
                    maximum=subscriptions.TTL_MAX_S,
                )
            }
        ),
    }


def _policy_fields() -> dict[str, dict[str, object]]:
    bounds = {
        name: {"minimum": least, "maximum": most} for name, (least, most) in topics.BOUNDS.items()
    }
    return {
        "priorityTiers": _said(
            "Priorities that a new task of the command may have, any when absent; 10 means 9. "
            "Tasks that are there keep theirs.",
            minItems=1,
            maxItems=TIERS_MAX,
            uniqueItems=True,
            items={"type": "integer", "minimum": 0, "maximum": TIER_MAX},
        ),
        "maxAttempts": _said(
            "Default and ceiling of a new task's deliveries.", **bounds["maxAttempts"]
        ),
        "deadLetterTopicRef": _said(
            "Queue in which the command's dead letters are kept; another one.",
            pattern=f"^{topics.LABEL.pattern}$",
        ),
        "retentionSeconds": _said(
            "From a task's end to its deletion; 0 for the broker's own.",
            **bounds["retentionSeconds"],
        ),
        "maxConsumers": _said(
            "Tasks of the queue in progress at once, over the whole cluster; 0 for any number.",
            **bounds["maxConsumers"],
        ),
        "weight": _said(
            "Share of the queue among those a claim takes from at once.", **bounds["weight"]
        ),
    }


def _said(text: str, **facts: object) -> dict[str, object]:
    return {"description": text, **facts}
