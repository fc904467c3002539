"""Logs: one JSON object per line, an event with fields. Tokens and payloads are never logged.

All output of the process goes this way, including warnings and uncaught exceptions.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections import Counter
from types import TracebackType

# A record's own attributes; all others came in `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
log = logging.getLogger(__name__)

_TEXT_CHARS_MAX = 4000  # A field is context, not a dump.
# One event, with other fields, is written so often in so many seconds.
EVENTS_MAX, WINDOW_S = 100, 10


class JsonLines(logging.Formatter):
    """Formats a record as `{"ts","level","event","node","logger", fields…}`."""

    def __init__(self, *, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as one line."""
        line: dict[str, object] = {
            "ts": _instant(record.created),
            "level": record.levelname.lower(),
            "event": _plain(record.getMessage()),
            "node": self._node,
            "logger": record.name,
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                line[name] = _plain(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        # The standard library escapes invalid UTF-8, on which a faster encoder fails.
        return json.dumps(line, default=str)


class Storms(logging.Filter):
    """Bounds how often one event is written, so that a storm of it cannot hold up the loop.

    Lower levels than warnings pass: they are as many as the requests. A traceback costs the loop
    0.3 ms, so ten thousand of them would cost a leader its leadership.
    """

    def __init__(self) -> None:
        super().__init__()
        self._window = 0
        self._written: Counter[tuple[str, int]] = Counter()  # By the line that logs it.

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record; the last one of a window says that it is."""
        if record.levelno < logging.WARNING:
            return True
        window = int(record.created // WINDOW_S)
        if window != self._window:
            self._window = window
            self._written.clear()
        event = record.name, record.lineno
        self._written[event] += 1
        if self._written[event] == EVENTS_MAX:
            record.more = f"not written for the rest of these {WINDOW_S} s"
        return self._written[event] <= EVENTS_MAX


def set_up_logs(level: str, *, node: str) -> None:
    """Send every log line of the process to standard error.

    Args:
        level: `debug`, `info`, `warning` or `error`; lower levels are dropped.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node=node))
    handler.addFilter(Storms())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # aiohttp's lower levels report clients' mistakes, which are metrics here.
    logging.getLogger("aiohttp").setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return  # The user asked for it.
    log.critical("uncaught error", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        log.error("uncaught error in a thread", exc_info=args.exc_value)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    log.error("error that could not be raised", exc_info=args.exc_value)


def _instant(unix_s: float) -> str:
    seconds, fraction = divmod(unix_s, 1)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(fraction * 1000):03d}Z"


def _plain(value: object) -> object:
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    text = str(value)
    return text if len(text) <= _TEXT_CHARS_MAX else text[:_TEXT_CHARS_MAX] + "…"
