"""Client: sends operations to real nodes over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from jepsen_lite.asking import Answer, Asker, content_of
from jepsen_lite.bulk import TAG_NAME as FIELD
from jepsen_lite.gathering import Gathered
from jepsen_lite.graphs import ATTEMPTS_MAX as NODE_ATTEMPTS_MAX
from jepsen_lite.graphs import ref_of
from jepsen_lite.groups import ATTEMPTS_MAX, MEMBER_COMMAND, THEN_COMMAND
from jepsen_lite.history import (
    Args,
    Counts,
    F,
    Follow,
    Handed,
    Made,
    Merging,
    Out,
    Part,
    Plan,
    Recorder,
    Run,
    Swept,
    Tally,
    Told,
    Type,
)
from jepsen_lite.keys import BURST, LIMIT, OF_QUEUE, OWN, PER_SECOND, SHARERS, hold_of, limited_with
from jepsen_lite.outcome import item_may_succeed_later, item_outcome, may_succeed_later, outcome
from jepsen_lite.step_calls import OF_STEPS, request_of, steps_in
from jepsen_lite.uniques import TAG_NAME
from tests.harness.http import Broken, HttpAnswer, HttpClient, Late, Refused

# Longer than the deadline and the margin of `answered_in_time`: if the client gives up, the broker
# is certainly too late.
GIVE_UP_S = 4.0
CONNECT_S = 3.0
PAGES_MAX = 50
PAGE = 200

_encode = msgspec.json.encode


class Tokens(Struct, frozen=True, kw_only=True):
    """Credentials: of producers, of the tenant's admin, of the operator, of workers by name."""

    producer: str
    admin: str
    operator: str
    workers: Mapping[str, str]


# The routes of operations on one task that have other names in the histories of some parts.
_CALLED = {
    **dict.fromkeys((F.FINISH, F.END, F.CLOSE, F.HAND_IN), F.RESULT),
    F.BEAT: F.HEARTBEAT,
    F.RETURN: F.NACK,
    F.STOP: F.CANCEL,
}


class Client(Asker):
    """Sends operations to real nodes and records them; an async context manager."""

    # While there is no result, the task is read by a second request.
    requests_max: ClassVar[Mapping[F, int]] = {
        F.READ: 2,
        F.RUNS: PAGES_MAX,
        F.PARTS: PAGES_MAX,
        F.TAGGED: PAGES_MAX,
        F.LAST: PAGES_MAX,
    }

    def __init__(
        self,
        urls: Mapping[str, str],
        recorder: Recorder,
        tokens: Tokens,
        *,
        deadline_ms: int,
        webhook: str = "",
        choices: Callable[[], Sequence[str]] | None = None,
        gathers: bool = False,
    ) -> None:
        """Send nothing yet.

        Args:
            urls: Of the nodes, by id.
            recorder: Gets the history.
            tokens: Credentials.
            deadline_ms: Of a request.
            webhook: Of tasks that have one.
            choices: Returns the nodes that may be asked; all by default.
            gathers: Creates that are sent to a node together take the batch route.
        """
        super().__init__(choices or (lambda: tuple(urls)), recorder, deadline_ms=deadline_ms)
        self._urls = dict(urls)
        self._tokens = tokens
        self._webhook = webhook
        self._http = HttpClient()
        self._gathered = Gathered(self._create_all) if gathers else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.close()

    async def _asked(self, f: F, args: Args, node: str, worker: str) -> Answer:
        token = self._tokens.workers[worker] if worker else self._tokens.producer
        match f:
            case F.CREATE if self._gathered is not None:
                return await self._gathered.send(node, self._new(args))
            case F.CREATE | F.MERGE | F.ORDER | F.SOW | F.OFFER:
                answer, body = await self._send(node, "/tasks", token, self._new(args))
                return _with(answer, _merged if f is F.MERGE else _created, body)
            case F.CLAIM | F.TAKE | F.START | F.BEGIN | F.ACCEPT:
                wanted = {
                    "commands": [] if args.any_command else [args.command],
                    "leaseSeconds": args.lease_ms // 1000,
                    "waitSeconds": args.wait_ms // 1000,
                }
                sent = _encode(wanted)
                path = "/tasks/claim"
                answer, body = await self._send(node, path, token, sent, wait_ms=args.wait_ms)
                return _with(answer, _claimed, body)
            case F.READ:
                return await self._read(node, token, args)
            case F.REQUEUE | F.REVIVE | F.BURY | F.SET_KEY | F.SWEEP | F.SWEPT:
                others = {F.SET_KEY: self._set_key, F.SWEEP: self._bulk, F.SWEPT: self._bulk}
                return await others.get(f, self._triage)(f, args, node)
            case F.MAKE_GRAPH | F.DEPEND:
                return await self._graph(f, args, node)
            case F.RUNS | F.PARTS | F.TAGGED | F.LAST:
                return await self._list(f, args, node)
            case F.BEGIN_GROUP | F.ADD_MEMBERS | F.SEAL_GROUP | F.GROUP:
                return await self._group(f, args, node)
            case F.PUT_SCHEDULE | F.PAUSE_SCHEDULE | F.BACKFILL | F.SCHEDULE:
                return await self._schedule(f, args, node)
            case _:
                return await self._about(f, args, node, token)

    async def _about(self, f: F, args: Args, node: str, token: str) -> Answer:
        """Send a request about one task, or about the events of all."""
        if f is F.WATCH:
            asked = f"command={args.command}&after={args.after}"
            path = f"/events?{asked}&waitSeconds={args.wait_ms // 1000}"
            answer, body = await self._send(node, path, token, wait_ms=args.wait_ms)
            return _with(answer, _page, body)
        if f in OF_STEPS:
            path, said = request_of(f, args)
            answer, body = await self._send(node, path, token, said)
            return _with(answer, steps_in, body)
        f = _CALLED.get(f, f)
        path = f"/tasks/{args.task}/{f.value}"
        if f is F.LOG:
            answer, body = await self._send(node, path, token)
            return _with(answer, _logged, body)
        answer, body = await self._send(node, path, token, _change(f, args))
        return _with(answer, _changed, body)

    async def _schedule(self, f: F, args: Args, node: str) -> Answer:
        path, admin = f"/admin/schedules/{args.schedule}", self._tokens.admin
        match f:
            case F.PUT_SCHEDULE:
                assert args.plan is not None
                sent = _planned(args.plan, args.command)
                answer, body = await self._send(node, path, admin, sent, method="PUT")
            case F.PAUSE_SCHEDULE:
                answer, body = await self._send(node, f"{path}/pause", admin, b"{}")
            case F.BACKFILL:
                wanted = {"from": _time(args.from_ms), "to": _time(args.to_ms)}
                sent = _encode(wanted | {"idempotencyKey": args.idempotency_key})
                answer, body = await self._send(node, f"{path}/backfill", admin, sent)
                return answer
            case _:
                answer, body = await self._send(node, path, admin)
        return _with(answer, _counted, body)

    async def _group(self, f: F, args: Args, node: str) -> Answer:
        path, sent = f"/groups/{args.group}", None
        tasks = [msgspec.json.decode(_member(each)) for each in args.next]
        match f:
            case F.BEGIN_GROUP:
                then = {"command": THEN_COMMAND, "payload": {"group": args.group}}
                path, sent = "/groups", {"id": args.group, "then": then, "tasks": tasks}
            case F.ADD_MEMBERS:
                path = f"{path}/tasks"
                sent = {"tasks": tasks, "idempotencyKey": args.idempotency_key}
            case F.SEAL_GROUP:
                path, sent = f"{path}/seal", {}
            case _:
                pass
        body = None if sent is None else _encode(sent)
        answer, told = await self._send(node, path, self._tokens.producer, body)
        return _with(answer, _tallied, told)

    async def _bulk(self, f: F, args: Args, node: str) -> Answer:
        path, sent = f"/admin/bulk/{args.command}", None
        if f is F.SWEEP:
            tag = {"tag": [f"{FIELD}:{args.tag}"]} if args.tag else {}
            select = {"command": args.command, **tag}
            path = "/admin/bulk"
            sent = _encode({"id": args.command, "select": select, "action": "cancel"})
        answer, body = await self._send(node, path, self._tokens.admin, sent)
        return _with(answer, _swept, body)

    async def _graph(self, f: F, args: Args, node: str) -> Answer:
        tasks = [_node(args.command, place, each) for place, each in enumerate(args.next)]
        path, sent = "/tasks/graph", dict[str, object](tasks=tasks)
        if f is F.DEPEND:
            path, [sent] = "/tasks", tasks
            del sent["ref"]
        body = _encode(sent | {"idempotencyKey": args.idempotency_key})
        answer, told = await self._send(node, path, self._tokens.producer, body)
        return _with(answer, _graphed, told)

    async def _triage(self, f: F, args: Args, node: str) -> Answer:
        path, method = f"/admin/queues/{args.command}/dlq", "DELETE"
        if f is not F.BURY:
            path, method = f"{path}/requeue", "POST"
        sent = _encode({"ids": [args.task]})
        answer, body = await self._send(node, path, self._tokens.admin, sent, method=method)
        return _triaged(answer, body)

    async def _set_key(self, _: F, args: Args, node: str) -> Answer:
        path, own = f"/admin/queues/{args.command}/keys/{quote(args.key)}", OWN.get(args.key)
        said: dict[str, object] = {"paused": True} if args.paused else {}
        if own is not None:
            rate = {"count": own.per_second, "burst": own.burst}
            said |= {"maxRunning": own.running, "rate": rate}
        method = "PUT" if said else "DELETE"
        answer, _ = await self._send(node, path, self._tokens.admin, _encode(said), method=method)
        return answer

    async def _list(self, f: F, args: Args, node: str) -> Answer:
        answer, tasks = await self._tasks(node, args.command, args.tag)
        if f is not F.RUNS:
            out = msgspec.structs.replace(answer.out, parts=tuple(map(_part, tasks)))
        else:
            runs = tuple(_run(task) for task in tasks if task.get("scheduleId"))
            out = msgspec.structs.replace(answer.out, runs=runs)
        return msgspec.structs.replace(answer, out=out)

    async def _tasks(self, node: str, command: str, tag: str = "") -> tuple[Answer, list[Any]]:
        """List every task of a command, or those of them with a tag; one operation."""
        asked = f"command={command}" + (f"&tag={TAG_NAME}:{tag}" if tag else "")
        tasks: list[Any] = []
        cursor = ""
        while True:
            path = f"/admin/tasks?{asked}&limit={PAGE}&cursor={cursor}"
            answer, body = await self._send(node, path, self._tokens.admin)
            if answer.type is not Type.OK:
                return answer, []
            tasks += body["tasks"]
            cursor = quote(body.get("cursor") or "")
            if not cursor:
                return Answer(type=Type.OK, out=Out(http=200), again=False), tasks

    async def _create_all(self, node: str, new: list[bytes]) -> list[Answer]:
        """Create tasks by the batch route."""
        sent = b'{"tasks":[%b]}' % b",".join(new)
        answer, body = await self._send(node, "/tasks/batch", self._tokens.producer, sent)
        if answer.type is not Type.OK:
            return [answer] * len(new)
        return [_created_in_batch(item) for item in body["results"]]

    def _new(self, args: Args) -> bytes:
        fields: dict[str, object] = {"command": args.command, "payload": msgspec.Raw(b"{}")}
        fields["payload"] = msgspec.Raw(args.content.encode())
        optional = {
            "priority": args.priority,
            "maxAttempts": args.attempts_max,
            "idempotencyKey": args.idempotency_key,
            "delaySeconds": args.delay_ms // 1000,
            "ttlSeconds": args.ttl_ms // 1000,
            "webhook": self._webhook if args.webhook else "",
            "key": args.key,
            "unique": _unique(args.merging) if args.merging is not None else None,
            "tags": _tags(args),
        }
        return _encode(fields | {name: value for name, value in optional.items() if value})

    async def _read(self, node: str, token: str, args: Args) -> Answer:
        """Read a task with its result, or without one while there is none; one operation."""
        path = f"/tasks/{args.task}"
        answer, body = await self._send(node, f"{path}/result", token)
        if answer.out.http == 404:
            answer, body = await self._send(node, path, token)
        if answer.out.http == 404:
            return Answer(type=Type.OK, out=Out(http=404, absent=True), again=False)
        return _with(answer, _seen, body)

    async def _govern(self, node: str, command: str) -> bool:
        rule = {"order": "fifo", "rate": {"count": PER_SECOND, "burst": BURST}}
        flow: dict[str, object] = {"perKey": rule}
        if (limits := OF_QUEUE.get(command)) is not None:
            rate = {"count": limits.per_second, "burst": limits.burst}
            flow = {"maxRunning": limits.running, "rate": rate}
        if command in SHARERS:
            if not await self._put(node, f"limits/{LIMIT}", flow):
                return False
            flow = {"limit": LIMIT}
        topic: dict[str, object] = {"priorityTiers": [0], "flow": flow}
        queues = limited_with(command)
        return all([await self._put(node, f"topics/{each}", topic) for each in queues])

    async def _put(self, node: str, what: str, fields: dict[str, object]) -> bool:
        """Put a topic or a limit; return whether it is in force everywhere."""
        path, token = f"/v1/codeq/admin/{what}", self._tokens.admin
        url, body = self._urls[node], _encode(fields)
        try:
            answer = await self._http.send(
                "PUT", url, path, token=token, body=body, timeout_s=GIVE_UP_S
            )
        except Broken:
            return False
        return answer.status in (200, 201) and b'"settling"' not in answer.body

    async def _send(
        self,
        node: str,
        path: str,
        token: str,
        body: bytes | None = None,
        *,
        wait_ms: int = 0,
        method: str = "POST",
    ) -> tuple[Answer, Any]:
        try:
            answer = await self._http.send(
                "GET" if body is None else method,
                self._urls[node],
                f"/v1/codeq{path}",
                token=token,
                body=body,
                timeout_s=(self._deadline_ms + wait_ms) / 1000 + GIVE_UP_S,
                connect_s=CONNECT_S,
            )
        except Refused as error:
            return _broken(Type.FAIL, error), None
        except Broken as error:
            return _broken(Type.INFO, error), None
        return _understood(answer)


def _understood(told: HttpAnswer) -> tuple[Answer, Any]:
    status, headers, raw = told.status, told.headers, told.body
    try:
        body = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        out = Out(http=status, code=f"no JSON: {raw[:60]!r}")
        return Answer(type=Type.INFO, out=out, again=True), None
    kind = outcome(status, headers)
    refusal = body if isinstance(body, dict) and kind is not Type.OK else {}
    again = may_succeed_later(status, retryable=refusal.get("retryable") is True)
    out = Out(
        http=status,
        code=str(refusal.get("code", "")),
        replayed=headers.get("x-codeq-idempotent-replay") == "true",
    )
    return Answer(type=kind, out=out, again=again), body


def _broken(kind: Type, error: Exception) -> Answer:
    code = "timeout" if isinstance(error, Late) else type(error).__name__
    return Answer(type=kind, out=Out(code=code), again=True)


def _with(answer: Answer, read: Callable[[Any], Out], body: Any) -> Answer:
    """Return a successful answer with the fields of its body."""
    if answer.type is not Type.OK:
        return answer
    told = answer.out
    more = read(body)
    out = msgspec.structs.replace(
        more, http=told.http, code=told.code, replayed=told.replayed, absent=more.absent
    )
    return Answer(type=answer.type, out=out, again=False)


def _triaged(answer: Answer, body: Any) -> Answer:
    """Return a refusal if the task was not a dead letter: nothing was done."""
    if (
        answer.type is Type.OK
        and isinstance(body, dict)
        and not (body.get("requeued") or body.get("deleted"))
    ):
        out = Out(http=answer.out.http, code="no dead letter")
        return Answer(type=Type.FAIL, out=out, again=False)
    return answer


def _change(f: F, args: Args) -> bytes:
    fields: dict[str, object] = {"leaseToken": args.token} if args.token else {}
    match f:
        case F.CANCEL if args.delay_ms:
            fields["graceSeconds"] = args.delay_ms // 1000
        case F.HEARTBEAT:
            fields["extendSeconds"] = args.lease_ms // 1000
            fields |= {"log": [args.content]} if args.content else {}
        case F.REJECT:
            fields["reason"] = args.content
        case F.NACK:
            fields["delaySeconds"] = args.delay_ms // 1000
            if args.hold:
                fields["hold"] = hold_of(args.command)
        case F.RESULT | F.END if args.status == "COMPLETED":
            fields |= {"status": args.status, "result": msgspec.Raw(args.content.encode())}
        case F.RESULT | F.END:
            fields |= {"status": args.status, "error": args.content}
        case _:
            pass
    if args.next:
        fields["next"] = [_following(each, args.command) for each in args.next]
    return _encode(fields)


def _following(asked: Follow, command: str) -> dict[str, object]:
    key = {"idempotencyKey": asked.key} if asked.key else {}
    return {"command": command, "payload": msgspec.Raw(asked.content.encode()), **key}


def _created(body: Any) -> Out:
    if not isinstance(body, dict):
        return Out()
    return Out(task=str(body.get("id", "")), shard=int(body.get("shard", -1)))


def _tags(args: Args) -> dict[str, str] | None:
    if args.merging is not None:
        return {TAG_NAME: args.merging.tag}
    return {FIELD: args.tag} if args.tag else None


def _unique(merging: Merging) -> dict[str, object]:
    said = {
        "debounceSeconds": merging.debounce_ms // 1000,
        "maxWaitSeconds": merging.max_wait_ms // 1000,
    }
    terms = {name: value for name, value in said.items() if value}
    return {"key": merging.key, "on": merging.on, **terms}


def _merged(body: Any) -> Out:
    delayed = body["lastKnownLocation"] == "DELAYED_ZSET"
    made = Made(
        how=body["unique"],
        created_ms=_ms(body["createdAt"]),
        changed_ms=_ms(body["updatedAt"]),
        start_ms=_ms(body["readyAt"]) if delayed else 0,
    )
    location = str(body["lastKnownLocation"])
    return Out(task=body["id"], attempt=int(body["attempts"]), location=location, made=made)


def _created_in_batch(item: Any) -> Answer:
    if "task" in item:
        out = msgspec.structs.replace(_created(item["task"]), http=202)
        return Answer(type=Type.OK, out=out, again=False)
    code = str(item.get("code", ""))
    out = Out(http=200, code=code)
    return Answer(type=item_outcome(code), out=out, again=item_may_succeed_later(code))


def _claimed(body: Any) -> Out:
    if not isinstance(body, dict):
        return Out()
    return Out(
        task=str(body["id"]),
        token=int(body["leaseToken"]),
        attempt=int(body["attempts"]),
        content=str(body["payload"]),
        shard=int(body.get("shard", -1)),
        priority=int(body.get("priority", 0)),
        inputs=tuple(_handed(name, told) for name, told in body.get("inputs", {}).items()),
        steps=steps_in(body).steps,
    )


def _handed(name: str, told: Any) -> Handed:
    content = told.get("error", "")
    if told["status"] == "COMPLETED":
        content = content_of(told["result"])
    return Handed(name=name, status=told["status"], content=content)


def _changed(body: Any) -> Out:
    if not isinstance(body, dict):
        return Out()
    asked = body.get("cancel")
    return Out(
        dead=body.get("status") == "dlq",
        next=_named(body),
        until_ms=_ms(asked["deadline"]) if asked else 0,
    )


def _logged(body: Any) -> Out:
    return Out(lines=tuple(each["text"] for each in body["lines"]))


def _named(result: dict[str, Any]) -> tuple[Follow, ...]:
    return tuple(
        Follow(task=each.get("id", ""), key=each.get("idempotencyKey", ""))
        for each in result.get("next", ())
    )


def _page(body: Any) -> Out:
    told = (
        Told(task=each["taskId"], kind=each["kind"], shard=each["shard"], index=each["index"])
        for each in body["events"]
    )
    return Out(told=tuple(told), cursor=body["cursor"])


def _planned(plan: Plan, command: str) -> bytes:
    fields = {name: value for name, value in asdict(plan).items() if value}
    return _encode(fields | {"task": {"command": command, "payload": {}}})


def _counted(body: Any) -> Out:
    coming = body["next"]
    counts = Counts(
        next_ms=_ms(coming[0]["at"]) if coming else 0,
        made=body["made"],
        missed=body["missed"]["count"],
        skipped=body["skipped"],
        paused=body.get("pausedBy", ""),
        filling="backfill" in body,
    )
    return Out(counts=counts)


def _run(task: Any) -> Run:
    return Run(
        task=task["id"],
        schedule=task["scheduleId"],
        at_ms=_ms(task["scheduledFor"]),
        created_ms=_ms(task["createdAt"]),
        changed_ms=_ms(task["updatedAt"]),
        status=task["status"],
        error=task.get("error", ""),
    )


def _member(asked: Follow) -> bytes:
    fields = {"command": MEMBER_COMMAND, "payload": msgspec.Raw(asked.content.encode())}
    optional = {"idempotencyKey": asked.key} if asked.key else {}
    return _encode(fields | optional | {"maxAttempts": ATTEMPTS_MAX})


def _node(command: str, place: int, asked: Follow) -> dict[str, object]:
    needs = [
        {
            "id" if "-" in each.parent else "ref": each.parent,
            "runIf": each.run_if,
            "else": each.otherwise,
            "onDead": each.on_dead,
        }
        for each in asked.needs
    ]
    return {
        "ref": ref_of(place),
        "command": command,
        "payload": msgspec.Raw(asked.content.encode()),
        "maxAttempts": NODE_ATTEMPTS_MAX,
        "dependsOn": needs,
        "key": asked.lane or None,
    }


def _graphed(body: Any) -> Out:
    tasks = body.get("tasks", [body])
    return Out(next=tuple(Follow(task=task["id"], content=str(task["payload"])) for task in tasks))


def _tallied(body: Any) -> Out:
    then = body.get("thenTaskId", "")
    return Out(tally=Tally(status=body["status"], counts=_counts_of(body), then=then))


def _swept(body: Any) -> Out:
    parts = 1 if body.get("incomplete") else body["shards"]
    said = {name: body[name] for name in ("status", "selected", "changed", "shards")}
    return Out(swept=Swept(parts=parts, **said))


def _counts_of(group: Any) -> tuple[int, int, int, int, int]:
    total, *ended = (group[name] for name in ("total", "completed", "failed", "cancelled", "dead"))
    completed, failed, cancelled, dead = ended
    return total, completed, failed, cancelled, dead


def _part(task: Any) -> Part:
    told = task.get("group")
    return Part(
        task=task["id"],
        group=told["id"] if told else task.get("groupId", task.get("uniqueKey", "")),
        content=str(task["payload"]),
        status=task["status"],
        dead=task["lastKnownLocation"] == "DLQ_SET",
        error=task.get("error", ""),
        created_ms=_ms(task["createdAt"]),
        changed_ms=_ms(task["updatedAt"]),
        counts=_counts_of(told) if told else None,
        attempts=task["attempts"],
    )


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _seen(body: Any) -> Out:
    task, result = body.get("task", body), body.get("result")
    content = ""
    if isinstance(result, dict):
        completed = result.get("status") == "COMPLETED"
        content = content_of(result.get("result")) if completed else str(result.get("error", ""))
    made = _named(result) if isinstance(result, dict) else ()
    return Out(
        status=str(task["status"]),
        location=str(task["lastKnownLocation"]),
        attempt=int(task["attempts"]),
        content=content,
        payload=str(task["payload"]),
        error=str(task.get("error", "")),
        shard=int(task.get("shard", -1)),
        next=made,
        parent=str(task.get("parentId", "")),
    )
