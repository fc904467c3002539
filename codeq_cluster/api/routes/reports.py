"""Reports: what a heartbeat may say of its task, and the refusals of it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from codeq_cluster.api.declared.bodies import Body, Schema, field, json_text, raw_field
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.codec.levels import REPORTS_FROM
from codeq_cluster.core.bounds import NUMBER_MAX
from codeq_cluster.core.checkpoint import CHECKPOINT_BYTES_MAX, checkpoint_bytes
from codeq_cluster.core.log_line import LINE, LINE_BYTES_MAX, LINES_A_REPORT_MAX, LINES_MAX
from codeq_cluster.core.progress import NOTE_BYTES_MAX, Progress

INVALID = bad_request("invalid 'progress'", "invalid-progress")
TOO_LARGE = ApiError(
    413, f"checkpoint exceeds {CHECKPOINT_BYTES_MAX} bytes", "checkpoint-too-large"
)
INVALID_LOG = bad_request("invalid 'log'", "invalid-log").because(
    f"at most {LINES_A_REPORT_MAX} lines, each of at most {LINE_BYTES_MAX} bytes"
)
TOO_EARLY = TooEarly(REPORTS_FROM, "'progress', 'checkpoint' and 'log' need")


_UNCOUNTED = INVALID.because(f"done and total must be 0 to {NUMBER_MAX}")


def _number(text: str) -> Any:
    return field(text, ge=0, le=NUMBER_MAX, refused=(_UNCOUNTED,))


class ProgressBody(Body):
    """How far the work is, in whatever the worker counts."""

    done: Int64 | None = _number("How much is done; 0 when absent.")
    total: Int64 | None = _number("How much there is; 0 when absent, for an unknown amount.")
    note: str | None = field(f"For people, at most {NOTE_BYTES_MAX} bytes.", refused=(INVALID,))


_PROGRESS = Schema(ProgressBody, refusal=INVALID.text)


def progress_field() -> Any:
    """Declare what a heartbeat says of the work."""
    return raw_field(
        "Of a heartbeat: how far the work is; the task shows it until another one comes.",
        inner=_PROGRESS,
        refused=(INVALID, TOO_EARLY),
    )


def checkpoint_field() -> Any:
    """Declare what a heartbeat leaves to the next delivery."""
    return raw_field(
        "Of a heartbeat: any JSON but null, at most "
        f"{CHECKPOINT_BYTES_MAX} bytes; the next delivery gets the last one.",
        refused=(TOO_LARGE, TOO_EARLY),
    )


def log_field() -> Any:
    """Declare what a heartbeat adds to the log of its task."""
    return field(
        f"Of a heartbeat: lines for the task's log, at most {LINES_A_REPORT_MAX} of "
        f"{LINE_BYTES_MAX} bytes each; the log keeps the last {LINES_MAX}. A heartbeat that is "
        "sent again adds them again.",
        maxItems=LINES_A_REPORT_MAX,
        items={"type": "string", "maxLength": LINE_BYTES_MAX},
        refused=(INVALID_LOG, TOO_EARLY),
    )


def read_report(
    call: Call, progress: Raw, checkpoint: Raw, log: list[str] | None
) -> tuple[Progress | None, str, tuple[str, ...]]:
    """Return what a heartbeat says: progress, a checkpoint's JSON text or "", and lines of a log.

    Raises:
        ApiError: It is refused.
    """
    lines = tuple(log or ())
    if bytes(progress) == bytes(checkpoint) == b"null" and not lines:
        return None, "", lines
    if len(lines) > LINES_A_REPORT_MAX or any(map(LINE, lines)):
        raise INVALID_LOG
    said = None
    if bytes(progress) != b"null":
        body = _PROGRESS.decode(progress)
        said = Progress(done=body.done or 0, total=body.total or 0, note=body.note or "")
        if len(said.note.encode(errors="replace")) > NOTE_BYTES_MAX:
            raise INVALID.because(f"note must have at most {NOTE_BYTES_MAX} bytes")
    depth_max = call.services.settings.limits.payload_depth_max
    text = json_text(checkpoint, "checkpoint", depth_max=depth_max, error="invalid 'checkpoint'")
    if checkpoint_bytes(text) > CHECKPOINT_BYTES_MAX:
        raise TOO_LARGE
    TOO_EARLY.check(call)
    return said, text, lines
