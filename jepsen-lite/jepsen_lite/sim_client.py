"""Simulated client: operations on a simulated cluster without HTTP, with the same answers."""

from __future__ import annotations

from hashlib import blake2b

from codeq_cluster.api.http.errors import ApiError, from_failure
from codeq_cluster.api.routes.task_views import task_view
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.dead_letters import DeadLetterSelection
from codeq_cluster.broker.requests.leases import HeldLease
from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, FoundTask, NewResult, new_request
from codeq_cluster.core.dependencies import Input, shown_status
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HOLDS, Nack
from codeq_cluster.core.lane import Order, PerKey
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Abandon, PutTopic
from codeq_cluster.core.outcomes import Created, Rejected, TopicStands
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Result
from codeq_cluster.errors import CodeqError
from jepsen_lite.asking import Answer, Asker
from jepsen_lite.gathering import Gathered
from jepsen_lite.history import (
    OF_BULK,
    OF_GROUPS,
    OF_REJECTS,
    OF_SCHEDULES,
    OF_UNIQUES,
    Args,
    F,
    Follow,
    Handed,
    Out,
    Recorder,
    Type,
)
from jepsen_lite.keys import BURST, LIMIT, OF_QUEUE, PER_SECOND, SHARERS, hold_of, limited_with
from jepsen_lite.outcome import may_succeed_later, outcome
from jepsen_lite.sim_bulk import SimBulk
from jepsen_lite.sim_graphs import SimGraphs
from jepsen_lite.sim_groups import SimGroups
from jepsen_lite.sim_keys import SimKeys
from jepsen_lite.sim_rejects import SimRejects
from jepsen_lite.sim_schedules import TENANT, SimSchedules
from jepsen_lite.sim_steps import SimSteps, stepped
from jepsen_lite.sim_uniques import SimUniques
from jepsen_lite.sim_watching import SimWatching
from jepsen_lite.step_calls import OF_STEPS
from jepsen_lite.taken import taken
from tests.simulator.brokers import AnswerLost, NotReached, SimBrokers

PRODUCER = "producer"
# As in the HTTP routes, a wait ends early, so that its answer arrives in time.
EARLY_S = 0.2
GIVE_UP_S = 4.0
NACK_S_MAX = 5


class SimClient(Asker):
    """Clients of a simulated cluster.

    Args:
        brokers: The cluster.
        recorder: Gets the history.
        deadline_ms: Of a request.
        gathers: Whether creates that reach a node together are sent as one call.
    """

    def __init__(
        self, brokers: SimBrokers, recorder: Recorder, *, deadline_ms: int, gathers: bool = False
    ) -> None:
        super().__init__(lambda: brokers.ids, recorder, deadline_ms=deadline_ms)
        self._brokers = brokers
        self._shards = brokers.settings.shards
        timeout_s = deadline_ms / 1000
        self._by_worker: dict[F, SimUniques | SimSteps | SimRejects] = {
            **dict.fromkeys(OF_REJECTS, SimRejects(timeout_s=timeout_s)),
            **dict.fromkeys(OF_UNIQUES, SimUniques(timeout_s=timeout_s)),
            **dict.fromkeys(OF_STEPS, SimSteps(timeout_s=timeout_s)),
        }
        self._others: dict[
            F, SimSchedules | SimGroups | SimGraphs | SimKeys | SimWatching | SimBulk
        ] = {
            **dict.fromkeys(OF_SCHEDULES, SimSchedules(brokers, timeout_s=timeout_s)),
            **dict.fromkeys((*OF_GROUPS, F.LAST), SimGroups(brokers, timeout_s=timeout_s)),
            **dict.fromkeys((F.MAKE_GRAPH, F.DEPEND), SimGraphs(timeout_s=timeout_s)),
            F.SET_KEY: SimKeys(timeout_s=timeout_s),
            F.WATCH: SimWatching(brokers, timeout_s=timeout_s),
            **dict.fromkeys(OF_BULK, SimBulk(timeout_s=timeout_s)),
        }
        self._gathered = Gathered(self._create_all) if gathers else None

    async def _asked(self, f: F, args: Args, node: str, worker: str) -> Answer:
        async def ask(broker: Broker) -> Out:
            if f in self._others:
                return await self._others[f].serve(broker, f, args, node)
            return await self._serve(broker, f, args, worker or PRODUCER)

        give_up_s = (self._deadline_ms + args.wait_ms) / 1000 + GIVE_UP_S
        try:
            out = await self._brokers.request(node, ask, give_up_s=give_up_s)
        except NotReached:
            return Answer(type=Type.FAIL, out=Out(code="refused"), again=True)
        except AnswerLost:
            return Answer(type=Type.INFO, out=Out(code="reset"), again=True)
        except TimeoutError:
            return Answer(type=Type.INFO, out=Out(code="timeout"), again=True)
        except ApiError as refused:
            return _refused(refused)
        except CodeqError as failed:
            return _refused(from_failure(failed))
        except Exception as error:  # noqa: BLE001 - what the server answers with 500
            out = Out(http=500, code=f"{type(error).__name__}: {error}")
            return Answer(type=Type.INFO, out=out, again=True)
        if f in (F.REQUEUE, F.REVIVE, F.BURY) and not out.task:
            # Nothing was done: the task is not a dead letter.
            return Answer(type=Type.FAIL, out=out, again=False)
        return Answer(type=Type.OK, out=out, again=False)

    async def _govern(self, node: str, command: str) -> bool:
        async def put(broker: Broker) -> bool:
            asking = Caller(TENANT, "operator", deadline_in(self._deadline_ms / 1000))
            rules: tuple[PerKey | None, PerQueue | None]
            rules = PerKey(order=Order.FIFO, rate=Rate(PER_SECOND, 1, BURST)), None
            if (limits := OF_QUEUE.get(command)) is not None:
                rate = Rate(limits.per_second, 1, limits.burst)
                rules = None, PerQueue(max_running=limits.running, rate=rate)
            policies, limit = broker.queue_policies, ""
            if command in SHARERS and rules[1] is not None:
                await policies.put_limit(asking, LIMIT, rules[1])
                rules, limit = (None, None), LIMIT
            settles = False
            for queue in limited_with(command):
                topic = PutTopic(tenant=TENANT, name=queue, by="operator", priority_tiers=(0,))
                stands = await policies.put_flow(asking, topic, *rules, limit=limit)
                assert isinstance(stands, TopicStands)
                settles = settles or await policies.is_settling(asking, stands.topic)
            return not settles

        try:
            return await self._brokers.request(node, put, give_up_s=GIVE_UP_S)
        except (NotReached, AnswerLost, TimeoutError, CodeqError):
            return False

    async def _serve(self, broker: Broker, f: F, args: Args, worker: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        timeout_s = self._deadline_ms / 1000
        match f:
            case F.CREATE | F.ORDER | F.OFFER:
                return await self._create(broker, args)
            case F.CLAIM | F.START | F.BEGIN | F.ACCEPT:
                return await self._claim(broker, args, worker, timeout_s)
            case F.READ:
                looked = await broker.result(
                    TENANT, args.task, wait_s=0, stale=False, timeout_s=timeout_s
                )
                return Out(http=404, absent=True) if looked is None else self._seen(*looked)
            case F.RESULT | F.END | F.CLOSE | F.HAND_IN:
                return await _submit(broker, args, worker, timeout_s)
            case F.HEARTBEAT | F.BEAT:
                held = HeldLease(
                    id=args.task,
                    token=args.token,
                    extend_ms=args.lease_ms,
                    log=(args.content,) if args.content else (),
                )
                extended = await broker.heartbeat(TENANT, worker, held, timeout_s=timeout_s)
                asked = taken(extended).cancelling
                return Out(http=200, until_ms=0 if asked is None else asked.deadline_ms)
            case F.NACK | F.RETURN:
                return await _nack(broker, args, worker, timeout_s)
            case F.ABANDON:
                abandon = Abandon(
                    request=new_request(),
                    id=args.task,
                    tenant=TENANT,
                    worker=worker,
                    token=args.token,
                )
                returned = await broker.give_back(abandon, timeout_s)
                return Out(http=200, dead=taken(returned).dead)
            case F.CANCEL | F.STOP:
                cancelled = await broker.cancel(
                    TENANT, args.task, grace_ms=args.delay_ms, timeout_s=timeout_s
                )
                taken(cancelled)
            case F.REQUEUE | F.REVIVE | F.BURY:
                wanted = DeadLetterSelection(queue=args.command, ids=(args.task,))
                operator = Caller(TENANT, "operator", deadline_in(timeout_s))
                act = broker.triage.delete if f is F.BURY else broker.triage.requeue
                done = await act(operator, wanted)
                return Out(http=200, task=args.task if done.changed else "")
            case _:
                return await self._by_worker[f].serve(broker, f, args, worker)
        return Out(http=200)

    async def _create(self, broker: Broker, args: Args) -> Out:
        new = Create(
            command=args.command,
            payload=args.content,
            priority=args.priority,
            max_attempts=args.attempts_max,
            idempotency_key=args.idempotency_key,
            delay_ms=args.delay_ms,
            ttl_ms=args.ttl_ms,
            key=args.key,
        )
        if self._gathered is None:
            [created] = await self._create_all(broker, [new])
        else:
            created = await self._gathered.send(broker, new)
        made = taken(created)
        task_id = made.task.id
        return Out(
            http=202, task=task_id, shard=shard_of(task_id, self._shards), replayed=made.replay
        )

    async def _create_all(
        self, broker: Broker, new: list[Create]
    ) -> list[Created | Rejected | CodeqError]:
        return await broker.create(TENANT, new, timeout_s=self._deadline_ms / 1000)

    async def _claim(self, broker: Broker, args: Args, worker: str, timeout_s: float) -> Out:
        claimed = await broker.claim(
            TENANT,
            worker,
            commands=() if args.any_command else (args.command,),
            count=1,
            lease_ms=args.lease_ms,
            wait_s=max(0.0, args.wait_ms / 1000 - EARLY_S),
            timeout_s=timeout_s,
        )
        if not claimed.tasks:
            return Out(http=204)
        task = claimed.tasks[0]
        return Out(
            http=200,
            task=task.id,
            token=task.lease_token,
            attempt=task.attempts,
            content=claimed.payloads[0],
            shard=shard_of(task.id, self._shards),
            priority=task.priority,
            inputs=tuple(map(_handed, claimed.inputs.get(task.id, ()))),
            steps=tuple(map(stepped, claimed.steps.get(task.id, ()))),
        )

    def _seen(self, found: FoundTask, result: Result | None) -> Out:
        view = task_view(found.task, found.payload, shards=self._shards)
        content = ""
        if result is not None:
            content = result.body if result.status == "COMPLETED" else result.error
        return Out(
            http=200,
            status=str(view.status),
            location=str(view.last_known_location),
            attempt=view.attempts,
            content=content,
            payload=found.payload,
            error=view.error,
            shard=found.shard,
            next=_named(result) if result is not None else (),
            parent=view.parent_id,
        )


def _handed(item: Input) -> Handed:
    ended = item.ended
    status = shown_status(ended.status)
    content = ended.body if status == "COMPLETED" else ended.error
    return Handed(name=item.name, status=status, content=content)


async def _submit(broker: Broker, args: Args, worker: str, timeout_s: float) -> Out:
    completed = args.status == "COMPLETED"
    new = NewResult(
        task_id=args.task,
        status=args.status,
        body=args.content if completed else "",
        error="" if completed else args.content,
        token=args.token,
        next=tuple(_following(each, args.command) for each in args.next),
        next_digest=_digest(args.next) if args.next else "",
    )
    [submitted] = await broker.submit(TENANT, worker, (new,), timeout_s=timeout_s)
    return Out(http=200, next=_named(taken(submitted).result))


def _following(asked: Follow, command: str) -> Create:
    return Create(
        command=command,
        payload=asked.content,
        idempotency_key=asked.key,
        fingerprint=fingerprint_of(command, asked.content) if asked.key else "",
    )


def _digest(asked: tuple[Follow, ...]) -> str:
    said = b"\n".join(f"{each.key} {each.content}".encode() for each in asked)
    return blake2b(said, digest_size=16).hexdigest()


def _named(result: Result) -> tuple[Follow, ...]:
    return tuple(Follow(task=each.id, key=each.key) for each in result.next)


async def _nack(broker: Broker, args: Args, worker: str, timeout_s: float) -> Out:
    nack = Nack(
        request=new_request(),
        id=args.task,
        tenant=TENANT,
        worker=worker,
        delay_ms=min(args.delay_ms, NACK_S_MAX * 1000),
        token=args.token,
    )
    asked = HOLDS[hold_of(args.command)](nack=nack) if args.hold else nack
    returned = await broker.give_back(asked, timeout_s)
    return Out(http=200, dead=taken(returned).dead)


def _refused(error: ApiError) -> Answer:
    return Answer(
        type=outcome(error.status, error.headers),
        out=Out(http=error.status, code=error.code),
        again=may_succeed_later(error.status, retryable=error.retryable),
    )
