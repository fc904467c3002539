"""Simulated steps: what the routes of durable steps do, without HTTP."""

from __future__ import annotations

from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, new_request
from codeq_cluster.core.durable import Park, RecordStep, SendSignal, Signal, Step
from jepsen_lite.history import Args, F, Out, Sent, Stepped
from jepsen_lite.taken import taken

TENANT = ""


class SimSteps:
    """Operations on durable steps of a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, worker: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        caller = Caller(TENANT, worker, deadline_in(self._timeout_s))
        match f:
            case F.SIGNAL:
                signal = SendSignal(
                    request=new_request(),
                    id=args.task,
                    tenant=TENANT,
                    name=args.name,
                    payload=args.content,
                    key=args.idempotency_key,
                )
                sent = await broker.steps.signal(caller, signal)
                return Out(http=200, replayed=taken(sent).replay)
            case F.STEPS:
                found = await broker.steps.of(caller, args.task)
                if found is None:
                    raise ApiError(404, "not found", "not-found")
                return Out(
                    http=200,
                    steps=tuple(map(stepped, found.steps)),
                    signals=tuple(map(_sent, found.signals)),
                )
            case F.RECORD:
                record = RecordStep(
                    id=args.task,
                    tenant=TENANT,
                    worker=worker,
                    name=args.name,
                    value=args.content,
                    extend_ms=args.lease_ms,
                    token=args.token,
                )
                stands = await broker.steps.record(caller, record)
            case _:
                operation = Park(
                    id=args.task,
                    tenant=TENANT,
                    worker=worker,
                    step=args.name,
                    signal=args.signal,
                    until_ms=0 if args.delay_ms else 1,
                    wait_ms=args.delay_ms,
                    extend_ms=args.lease_ms,
                    token=args.token,
                )
                stands = await broker.steps.park(caller, operation)
        return Out(http=200, steps=(stepped(taken(stands).step),))


def stepped(step: Step) -> Stepped:
    """Return a step as a client reads it."""
    return Stepped(
        name=step.name,
        content=step.value,
        signal=step.signal,
        at_ms=step.at_ms,
        until_ms=step.until_ms,
        open=step.is_open,
    )


def _sent(signal: Signal) -> Sent:
    return Sent(name=signal.name, content=signal.payload, read=signal.is_read)
