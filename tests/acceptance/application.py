"""An application with libraries of its own choice: routes, and a worker in the same event loop.

Its environment names a node, the tokens and the port.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from codeq_cluster.client import Client, SyncClient, Task, Worker

URLS = [os.environ["BROKER"]]
PRODUCER, WORKER = os.environ["PRODUCER"], os.environ["WORKER"]


@dataclass
class Greeting:
    """The payload of a task."""

    name: str


worker = Worker(URLS, token=WORKER)


@worker.task("greet")
async def greet(task: Task[Greeting]) -> dict[str, str]:
    """Greet by a coroutine."""
    return {"greeting": f"hello {task.payload.name}"}


@worker.task("shout")
def shout(task: Task[Greeting]) -> dict[str, str]:
    """Greet in a thread."""
    return {"greeting": f"HELLO {task.payload.name.upper()}"}


@asynccontextmanager
async def working(app: FastAPI) -> AsyncIterator[None]:
    """Work while the application serves."""
    async with Client(URLS, token=PRODUCER) as app.state.client, asyncio.TaskGroup() as group:
        group.create_task(worker.serve())
        yield
        worker.stop()


app = FastAPI(lifespan=working)


@app.post("/greetings/{name}")
async def greeting(name: str) -> dict[str, str]:
    """Create a task and wait for its result, in a coroutine."""
    result = await app.state.client.create_and_wait("greet", {"name": name}, timeout_s=30)
    return result.value


@app.post("/shouts/{name}")
def shouted(name: str) -> dict[str, str]:
    """Do the same in a thread."""
    with SyncClient(Client(URLS, token=PRODUCER)) as client:
        return client.create_and_wait("shout", {"name": name}, timeout_s=30).value


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
