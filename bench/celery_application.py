"""Celery application: one task that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import os

from celery import Celery

from bench import sends

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


note = app.task(name="note")(sends.note)


if __name__ == "__main__":
    for given in sends.timed():
        note.delay(*given)
