"""Celery application: one task that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from celery import Celery

app = Celery("bench", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=25,
    broker_connection_retry_on_startup=True,
)
if app.conf.broker_url.startswith("amqp"):
    # A task that was sent is then on a majority, as with the cluster.
    app.conf.update(
        task_default_queue_type="quorum", broker_transport_options={"confirm_publish": True}
    )


@app.task(name="note")  # type: ignore[untyped-decorator]
def note(journal: str, payload: str) -> None:
    """Add a byte to the journal."""
    with Path(journal).open("ab", buffering=0) as file:
        file.write(payload[:1].encode())


if __name__ == "__main__":
    journal, tasks = sys.argv[1:]
    began_s = time.monotonic()
    for _ in range(int(tasks)):
        note.delay(journal, "x" * 100)
    print(time.monotonic() - began_s)
