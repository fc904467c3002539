"""Client: access to the broker from outside, over HTTP; imports no server code.

`Client` is for producers and readers, `Worker` for workers, `Operator` for admins of a tenant and
operators of the cluster. Each is a `Connection` to all nodes. `SyncClient` and `SyncOperator` are
for programs without an event loop. `Leases` has the requests behind `Worker`, for a hand-written
loop.
"""

from codeq_cluster.client.bulk import BulkAction, BulkCounts, BulkRecord, TaskSelection
from codeq_cluster.client.callbacks import (
    CallbackRefused,
    QueueReady,
    TaskEnded,
    verify_callback,
    verify_notice,
)
from codeq_cluster.client.client import Client
from codeq_cluster.client.codecs import Codec, MsgspecCodec
from codeq_cluster.client.connection import Connection
from codeq_cluster.client.documents import Page
from codeq_cluster.client.events import EventKind, TaskEvent
from codeq_cluster.client.graphs import DependencyRecord, Graph, NodeRecord, chain, fan
from codeq_cluster.client.groups import (
    GroupMember,
    GroupMembers,
    GroupRecord,
    GroupsPage,
    OpenGroup,
)
from codeq_cluster.client.handling import (
    Done,
    Ended,
    Ending,
    Fail,
    HandlersStuck,
    HandlerTimeout,
    HandlerUnfit,
    Reject,
    Retry,
    Task,
)
from codeq_cluster.client.leases import KeptLease, Leases, SubmittedResult
from codeq_cluster.client.live import Live
from codeq_cluster.client.operator import Operator, Selection
from codeq_cluster.client.probe import Probe
from codeq_cluster.client.producing import After, NewTask, NotCreated, Unique
from codeq_cluster.client.records import (
    Artifact,
    AttemptRecord,
    CancelRecord,
    Explanation,
    FollowUp,
    GroupCounts,
    InputRecord,
    LogLineRecord,
    LogRecord,
    ResultRecord,
    SignalRecord,
    State,
    Status,
    StepRecord,
    StepsRecord,
    TaskRecord,
)
from codeq_cluster.client.refusals import TOO_EARLY, ConnectionGone, Refused, Unreachable, Untrusted
from codeq_cluster.client.results import NotFinished, Result, TaskFailed
from codeq_cluster.client.scheduling import (
    Applied,
    Backfilled,
    InstantRecord,
    NewSchedule,
    RunRecord,
    ScheduleRecord,
    Triggered,
)
from codeq_cluster.client.steps import Signal, StepsChanged
from codeq_cluster.client.sync import SyncClient, SyncGroup, SyncOperator
from codeq_cluster.client.tokens import Token
from codeq_cluster.client.worker import Worker

__all__ = [
    "TOO_EARLY",
    "After",
    "Applied",
    "Artifact",
    "AttemptRecord",
    "Backfilled",
    "BulkAction",
    "BulkCounts",
    "BulkRecord",
    "CallbackRefused",
    "CancelRecord",
    "Client",
    "Codec",
    "Connection",
    "ConnectionGone",
    "DependencyRecord",
    "Done",
    "Ended",
    "Ending",
    "EventKind",
    "Explanation",
    "Fail",
    "FollowUp",
    "Graph",
    "GroupCounts",
    "GroupMember",
    "GroupMembers",
    "GroupRecord",
    "GroupsPage",
    "HandlerTimeout",
    "HandlerUnfit",
    "HandlersStuck",
    "InputRecord",
    "InstantRecord",
    "KeptLease",
    "Leases",
    "Live",
    "LogLineRecord",
    "LogRecord",
    "MsgspecCodec",
    "NewSchedule",
    "NewTask",
    "NodeRecord",
    "NotCreated",
    "NotFinished",
    "OpenGroup",
    "Operator",
    "Page",
    "Probe",
    "QueueReady",
    "Refused",
    "Reject",
    "Result",
    "ResultRecord",
    "Retry",
    "RunRecord",
    "ScheduleRecord",
    "Selection",
    "Signal",
    "SignalRecord",
    "State",
    "Status",
    "StepRecord",
    "StepsChanged",
    "StepsRecord",
    "SubmittedResult",
    "SyncClient",
    "SyncGroup",
    "SyncOperator",
    "Task",
    "TaskEnded",
    "TaskEvent",
    "TaskFailed",
    "TaskRecord",
    "TaskSelection",
    "Token",
    "Triggered",
    "Unique",
    "Unreachable",
    "Untrusted",
    "Worker",
    "chain",
    "fan",
    "verify_callback",
    "verify_notice",
]
