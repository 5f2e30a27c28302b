"""A server with the routes of the page, without a model. A word in the prompt says what goes wrong."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PAGE = Path(__file__).parents[2] / "src" / "foretoken" / "serve" / "page" / "index.html"
POLICY = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
LEVELS = ["mxfp4", "lookup"]
TEXT = '''a, b):
    """Return the sum <b>of</b> two numbers, or of two vectors of one length."""
    if isinstance(a, list):
        return [add(x, y) for x, y in zip(a, b)]
    return a + b

subtract = lambda a, b: add(a, -b)  # né
'''
WORDS = re.findall(r"\n *| ?\w{1,6}|[^\w\s]+| ", TEXT)


def rounds(prompt: str, *, plain: bool, limit: int) -> Iterator[dict[str, Any]]:
    """The rounds of a text. The first two only read the prompt."""
    chance, number, at, done = random.Random(len(prompt)), -1, 0.0, 0
    while done < limit:
        number, reads = number + 1, number < 1
        sent = 0 if plain or reads else chance.choice([0, 2, 3, 5, 8])
        taken = min(chance.randint(0, sent), limit - done - 1)
        draft = chance.uniform(0.001, 0.008) if sent else 0.0
        at += draft + 0.05
        origins = [LEVELS[chance.random() < 0.6] for _ in range(taken)] + ["target"]
        tokens = [
            {"id": 2 * n, "text": WORDS[n], "origin": origin, "logprob": -0.03 * (n % 7)}
            for n, origin in enumerate([] if reads else origins, done)
        ]
        if plain and "differ" in prompt and done == 11:
            tokens[0] |= {"id": 1, "text": " other"}
        rejected = [  # a tree: two branches begin behind the accepted tokens
            {"id": 3, "text": WORDS[(7 * done + n) % len(WORDS)], "origin": LEVELS[n % 2], "parent": max(-1, n - 2)}
            for n in range(sent - taken)
        ]
        work = {"seconds": draft / 2, "passes": 1, "draft_tokens": sent, "checked_tokens": sent}
        levels = [{"name": name, **work, "accepted_tokens": taken} for name in LEVELS if sent]
        trace = {"round": number, "at": at, "draft_seconds": draft, "check_seconds": 0.05, "read": 20 * reads}
        trace |= {"sequences": 1, "position": done, "tokens": tokens, "after": taken}
        yield trace | {"rejected": rejected, "levels": levels}
        done += len(tokens)


def last(past: list[dict[str, Any]], why: str | None, seed: int | None) -> dict[str, Any]:
    """What the last event says of a text, as far as the page reads it."""
    output = sum(len(each["tokens"]) for each in past)
    taken, at = sum(each["after"] for each in past), past[-1]["at"] - 0.1
    level = {"seconds": at / 20, "draft_tokens": 2 * taken, "accepted_tokens": taken}
    stats = {"passes": len(past) - 2, "mean_acceptance_length": output / (len(past) - 2), "draft_tokens": 2 * taken}
    stats |= {"tokens_per_second": output / at, "tokens_per_second_with_prefill": output / (at + 0.1)}
    stats |= {"plain_tokens_per_second": 19.2, "prefill_seconds": 0.1, "decode_seconds": at}
    stats |= {"draft_seconds": at / 10, "check_seconds": 0.9 * at, "levels": [{"name": n, **level} for n in LEVELS]}
    said = {"promise": "exact", "seed": seed, "draft": ",".join(LEVELS), "why_no_draft": why, "stats": stats}
    usage = {"prompt_tokens": 40, "completion_tokens": output, "total_tokens": 40 + output}
    return {"choices": [], "usage": usage, "foretoken": said}


def sent(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def fake(*, key: str | None = None, chat: bool = True, slow: float = 0.0) -> Starlette:
    """key: what it asks for. slow: how long it sleeps for each second that it pretends to need. `app.state.asked` holds
    the bodies of the requests."""

    async def page(_: Request) -> Response:
        return FileResponse(PAGE, headers={"content-security-policy": POLICY})

    async def status(request: Request) -> Response:
        told = {"model": "stdlib-27m", "draft": ",".join(LEVELS), "levels": LEVELS, "promise": "exact", "threads": 2}
        told |= {"arithmetic": "native avx512bf16", "context_length": 4096, "chat": chat, "example": "def add("}
        return refused(request) or JSONResponse(told | {"running": [], "waiting": 0, "version": "0.1.0"})

    def refused(request: Request) -> Response | None:
        if key is None or request.headers.get("authorization") == f"Bearer {key}":
            return None
        return JSONResponse({"error": {"message": "this server asks for a key"}}, 401)

    async def events(body: dict[str, Any], prompt: str) -> AsyncIterator[str]:
        plain, past = body.get("draft") == "none" or "nothing" in prompt, []
        yield ": ping\n\n"
        for each in rounds(prompt, plain=plain, limit=min(body["max_tokens"], len(WORDS))):
            await asyncio.sleep(slow * (each["draft_seconds"] + each["check_seconds"]))
            past.append(each)
            text = "".join(token["text"] for token in each["tokens"])
            choice = {"delta": {"content": text}} if "messages" in body else {"text": text}
            yield sent({"id": "cmpl-1", "choices": [choice | {"finish_reason": None, "foretoken": each}]})
            if "break" in prompt and len(past) == 8:
                yield sent({"error": {"message": "the engine has failed", "type": "server_error"}})
                return
        yield sent(last(past, "Nothing was drafted: nothing repeated." if plain else None, body.get("seed")))
        yield "data: [DONE]\n\n"

    async def complete(request: Request) -> Response:
        body = await request.json()
        app.state.asked.append(body)
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if "refuse" in prompt:
            return JSONResponse({"error": {"message": "the prompt has 5000 tokens; shorten it"}}, 400)
        return refused(request) or StreamingResponse(events(body, prompt), media_type="text/event-stream")

    posts = [Route(f"/v1/{path}", complete, methods=["POST"]) for path in ("completions", "chat/completions")]
    app = Starlette(routes=[Route("/", page), Route("/v1/foretoken/status", status), *posts])
    app.state.asked = []
    return app
