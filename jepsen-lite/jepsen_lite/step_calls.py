"""Step calls: what the requests about durable steps carry, and what their answers show."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from jepsen_lite.asking import content_of
from jepsen_lite.history import Args, F, Out, Sent, Stepped

OF_STEPS = frozenset({F.RECORD, F.PARK, F.SIGNAL, F.STEPS})


def request_of(f: F, args: Args) -> tuple[str, bytes | None]:
    """Return the path and the body of a request; no body for a read."""
    path = f"/tasks/{args.task}"
    lease: dict[str, object] = {
        "leaseToken": args.token,
        "extendSeconds": args.lease_ms // 1000,
    }
    match f:
        case F.RECORD:
            path = f"{path}/steps"
            body = {"name": args.name, "value": msgspec.Raw(args.content.encode()), **lease}
        case F.PARK:
            path = f"{path}/park"
            signal = {"signal": args.signal} if args.signal else {}
            body = {"step": args.name, "forSeconds": args.delay_ms // 1000, **signal, **lease}
        case F.SIGNAL:
            path = f"{path}/signals/{args.name}"
            body = {"payload": msgspec.Raw(args.content.encode())}
            body |= {"idempotencyKey": args.idempotency_key} if args.idempotency_key else {}
        case _:
            return f"{path}/steps", None
    return path, msgspec.json.encode(body)


def steps_in(body: Any) -> Out:
    """Return the steps and signals that an answer shows."""
    if not isinstance(body, dict):
        return Out()
    steps = [body["step"]] if "step" in body else body.get("steps", [])
    return Out(
        replayed=body.get("replay", False),
        steps=tuple(map(_stepped, steps)),
        signals=tuple(map(_sent, body.get("signals", []))),
    )


def _stepped(step: dict[str, Any]) -> Stepped:
    return Stepped(
        name=step["name"],
        content=content_of(step["value"]) if "value" in step else "",
        signal=step.get("signal", ""),
        at_ms=_ms(step["recordedAt"]),
        until_ms=_ms(step["until"]) if "until" in step else 0,
        open=step.get("open", False),
    )


def _sent(signal: dict[str, Any]) -> Sent:
    content = content_of(signal["payload"]) if "payload" in signal else ""
    return Sent(name=signal["name"], content=content, read=signal.get("read", False))


def _ms(instant: str) -> int:
    return round(datetime.fromisoformat(instant).timestamp() * 1000)
