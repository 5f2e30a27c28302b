"""A request under way: what the loop tells of it, on its way from the loop's thread to the connection's task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from foretoken.serve.asked import Asked, Done, Event, Failed, Gained
from foretoken.serve.asking import Wanted
from foretoken.serve.worker import Worker


class Running:
    """The prompts of one request, in the loop of a server.

    Iterate `events`, and call `close` in any case: it gives up what has not ended.
    """

    def __init__(self, worker: Worker, wanted: Wanted, name: str, *, rounds: bool) -> None:
        """rounds: whether events tell of each round. Raises what `Worker.submit` raises; then nothing goes on."""
        self._worker = worker
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._left = sum(map(len, wanted.prompts))
        self.done: list[list[Done]] = [[] for _ in wanted.prompts]
        read = sum(len(requests[0].prompt) for requests in wanted.prompts)
        # what a log may say of the request
        self.shape: dict[str, Any] = {"id": name, "prompt_tokens": read, "completion_tokens": 0, "cached_tokens": 0}
        tokenizer = worker.model.tokenizer
        if wanted.calls is not None and tokenizer is not None:
            tokenizer = wanted.calls.showing(tokenizer)
        self._asked = [
            Asked(name, requests, wanted.settings, partial(self._tell, at), rounds, tokenizer)
            for at, requests in enumerate(wanted.prompts)
        ]
        worker.submit(self._asked)

    async def events(self) -> AsyncIterator[tuple[int, Gained | Done]]:
        """What happens, each with the number of its prompt. Raises the error with which a prompt has failed."""
        while self._left:
            at, event = await self._events.get()
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                self._left -= 1
                self.done[at].append(event)
                self.done[at].sort(key=lambda each: each.index)
                self.shape["cached_tokens"] += event.completion.cached_tokens
            yield at, event

    async def whole(self) -> None:
        """Wait until all texts have ended."""
        async for _ in self.events():
            pass

    def close(self) -> None:
        """Give up what has not ended."""
        self.shape["completion_tokens"] = sum(asked.written for asked in self._asked)
        for asked in self._asked:
            if not asked.times.ended or asked.left:
                self._worker.cancel(asked)

    def _tell(self, at: int, event: Event) -> None:
        """Called in the loop's thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (at, event))
        except RuntimeError:  # the server's event loop has ended, and nobody listens any more
            self._worker.cancel(self._asked[at])
