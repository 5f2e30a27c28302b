"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from foretoken.api.model import Model
from foretoken.common.version import VERSION
from foretoken.errors import AwayError, ForetokenError, cut, one_line
from foretoken.serve.answering import KINDS, Answering
from foretoken.serve.asked import Asked, Done
from foretoken.serve.asking import Asking
from foretoken.serve.errors import ServeError, as_served, body, headers, invalid, refused
from foretoken.serve.fields import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ResponsesBody,
    Sampled,
    TokenizeBody,
    ignored,
)
from foretoken.serve.forms import Form, Json
from foretoken.serve.guard import REFUSED
from foretoken.serve.logs import SHAPE
from foretoken.serve.metrics import CONTENT_TYPE, Metrics
from foretoken.serve.reference import reference
from foretoken.serve.running import Running
from foretoken.serve.worker import Worker

log = logging.getLogger(__name__)
_PAGE = Path(__file__).parent / "page" / "index.html"
_PING = 15.0  # seconds without an event after which a stream sends a comment, so that nobody in between gives it up
_NAMED = 20  # fields that nobody knows which an answer names
_EXAMPLE = "def add("  # a prompt for models without a chat template


@dataclass(frozen=True)
class Serving:
    """What the routes need. names: of the model, the first of which answers say. origins: web pages
    elsewhere that may ask."""

    model: Model
    worker: Worker
    asking: Asking
    metrics: Metrics
    names: tuple[str, ...]
    origins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that answers say."""
        return self.names[0]


def make_app(serving: Serving) -> FastAPI:
    """The server's routes."""
    app = FastAPI(
        title="Foretoken",
        version=VERSION,
        description="A language model with OpenAI's interface. On the CPU, drafts do not change its text.",
        docs_url=None,
        redoc_url=None,
        strict_content_type=False,  # people who try it with curl leave the header out
    )
    routes = _Routes(serving)
    app.post("/v1/completions", summary="Continue a prompt, or several", tags=["generate"])(routes.completions)
    app.post("/v1/chat/completions", summary="Answer messages", tags=["generate"])(routes.chat)
    app.post("/v1/responses", summary="Answer an input: the plain core", tags=["generate"])(routes.responses)
    app.get("/v1/models", summary="The model", tags=["about"])(routes.models)
    app.get("/v1/models/{name:path}", summary="The model, by its name", tags=["about"])(routes.one_model)
    app.get("/v1/foretoken/status", summary="What is under way", tags=["about"])(routes.status)
    app.post("/tokenize", summary="The tokens of a text, or of messages", tags=["tokens"])(routes.tokenize)
    app.post("/detokenize", summary="The text of tokens", tags=["tokens"])(routes.detokenize)
    app.get("/health", summary="200 while the server serves", tags=["about"])(routes.health)
    app.get("/ping", include_in_schema=False)(routes.health)
    for path in ("/health", "/ping"):  # those who look whether a server is there may leave the body out
        app.head(path, include_in_schema=False)(routes.health)
    app.get("/version", summary="The server's version", tags=["about"])(routes.version)
    app.get("/metrics", summary="Metrics for Prometheus", tags=["about"])(routes.metrics)
    app.get("/", include_in_schema=False)(routes.page)
    app.head("/", include_in_schema=False)(routes.page)
    app.get("/docs", include_in_schema=False)(lambda: HTMLResponse(reference(app.openapi())))
    for kind, handler in (
        (ForetokenError, _refuse),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (Exception, _refuse),
    ):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]
    if serving.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(serving.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app


class _Routes:
    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._answering = Answering(serving.worker, serving.asking, serving.names)
        self._began = int(time.time())

    # -- generating -------------------------------------------------------------------------------------------------

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        if body.stream and body.echo and (body.logprobs is not None or body.max_tokens == 0):
            raise refused("stream", "echo cannot be streamed with logprobs or without new tokens; leave stream out")
        if body.stream and body.prompt_logprobs is not None:
            raise refused("stream", "prompt_logprobs cannot be streamed; leave stream out")
        return await self._answer("/v1/completions", body, request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        return await self._answer("/v1/chat/completions", body, request)

    async def responses(self, body: ResponsesBody, request: Request) -> Response:
        return await self._answer("/v1/responses", body, request)

    async def _answer(self, path: str, body: Sampled, request: Request) -> Response:
        question = await run_in_threadpool(self._answering.read, KINDS[path], body)
        running = self._answering.begin(question, rounds=bool(body.stream))
        request.scope[SHAPE] = running.shape
        more = _ignored(body)
        if body.stream:
            more |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
            return _Stream(running, question.form, more)
        try:
            await _unless_gone(running.whole(), request)
        finally:
            running.close()
        return _json(await run_in_threadpool(question.form.whole, running.done), more)

    # -- tokens -----------------------------------------------------------------------------------------------------

    async def tokenize(self, body: TokenizeBody) -> Response:
        self._answering.expect_known(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ServeError(400, "give either a prompt or messages", param="prompt")
        tokens = await run_in_threadpool(self._tokens, body)
        answer: Json = {"count": len(tokens), "max_model_len": self._serving.worker.limits.context, "tokens": tokens}
        if body.return_token_strs:
            answer["token_strs"] = [self._answering.describe(token) for token in tokens]
        return _json(answer)

    def _tokens(self, body: TokenizeBody) -> list[int]:
        asking = self._serving.asking
        if body.messages is not None:
            how = {
                "add_generation_prompt": body.add_generation_prompt,
                "continue_final_message": body.continue_final_message,
            }
            return list(asking.tokens_of_messages(body.messages, **how))
        return list(asking.encode(body.prompt or "", special=body.add_special_tokens))

    async def detokenize(self, body: DetokenizeBody) -> Response:
        self._answering.expect_known(body.model)
        return _json({"prompt": await run_in_threadpool(self._serving.asking.text, body.tokens)})

    # -- about ------------------------------------------------------------------------------------------------------

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._about(name) for name in self._serving.names]})

    async def one_model(self, name: str) -> Response:
        self._answering.expect_known(name)
        return _json(self._about(name))

    def _about(self, name: str) -> Json:
        model, limits = self._serving.model, self._serving.worker.limits
        return {
            "id": name,
            "object": "model",
            "created": self._began,
            "owned_by": "foretoken",
            "root": self._serving.name,
            "max_model_len": limits.context,
            "foretoken": {"draft": model.draft, "promise": model.promise},
        }

    async def status(self) -> Response:
        model, worker = self._serving.model, self._serving.worker
        tokenizer = self._serving.asking.tokenizer
        return _json(
            {
                "model": self._serving.name,
                "draft": model.draft,
                "levels": list(model.levels),
                "promise": model.promise,
                "arithmetic": model.target.arithmetic,
                "threads": model.target.threads,
                "context_length": worker.limits.context,
                "chat": tokenizer is not None and tokenizer.has_chat_template,
                "example": _EXAMPLE,
                "running": [_under_way(asked) for asked in worker.running],
                "waiting": worker.waiting,
                "version": VERSION,
            }
        )

    async def health(self) -> Response:
        over = self._serving.worker.over.is_set()
        return _json({"status": "ended" if over else "ok"}, status=503 if over else 200)

    async def version(self) -> Response:
        return _json({"version": VERSION})

    async def metrics(self) -> Response:
        return PlainTextResponse(self._serving.metrics.text(), media_type=CONTENT_TYPE)

    async def page(self) -> Response:
        if not _PAGE.exists():
            return HTMLResponse("<!doctype html><title>Foretoken</title><p>The page is not here.", 404)
        policy = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
        return HTMLResponse(_PAGE.read_text("utf-8"), headers={"content-security-policy": policy})


# -- sending --------------------------------------------------------------------------------------------------------


class _Stream(StreamingResponse):
    """The events of a request. However it ends, or if it never begins, the request is given up."""

    def __init__(self, running: Running, form: Form, more: dict[str, str]) -> None:
        super().__init__(_events(running, form), headers=more, media_type="text/event-stream")
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.close()


async def _events(running: Running, form: Form) -> AsyncIterator[bytes]:
    """The events of a stream. If the client goes away, this is closed, and so is the request."""
    events = running.events()
    following: asyncio.Task[Any] | None = None
    try:
        for each in form.begin():
            yield _event(each)
        while True:
            following = following or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([following], timeout=_PING)
            if not done:
                yield b": ping\n\n"
                continue
            try:
                prompt, event = following.result()
            except StopAsyncIteration:
                break
            following = None
            for each in form.ended(prompt, event) if isinstance(event, Done) else form.gained(prompt, event):
                yield _event(each)
        for each in form.end(running.done):
            yield _event(each)
    except Exception as error:
        if not isinstance(error, ServeError):
            log.warning("a stream has failed: %s", type(error).__name__)  # a message may hold the request's text
        yield _event(body(as_served(error)))
    finally:
        if following is not None and not following.done():
            following.cancel()
        running.close()
    yield b"data: [DONE]\n\n"


def _event(content: Json) -> bytes:
    kind = content.get("type")
    before = f"event: {kind}\n".encode() if isinstance(kind, str) else b""
    return before + b"data: " + _bytes(content) + b"\n\n"


async def _unless_gone(work: Any, request: Request) -> None:
    """Wait for work, unless the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ServeError(499, "the client has gone")
        task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(BaseException):
                await each


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _ignored(body: Sampled) -> dict[str, str]:
    """The header that names fields which nobody knows."""
    unknown = ignored(body)
    if not unknown:
        return {}
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    said = ", ".join(one_line(name) for name in unknown[:_NAMED]) + more
    return {"x-foretoken-ignored": said.encode("ascii", "replace").decode()}


def _json(content: Any, more: dict[str, str] | None = None, *, status: int = 200) -> Response:
    return Response(_bytes(content), status, more, media_type="application/json")


def _bytes(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def _under_way(asked: Asked) -> Json:
    return {
        "id": asked.name,
        "state": "decoding" if asked.times.first else "reading",
        "prompt_tokens": len(asked.prompt),
        "read": asked.read,
        "output_tokens": asked.written,
        "seconds": time.perf_counter() - asked.times.came,
    }


# -- errors ---------------------------------------------------------------------------------------------------------


async def _refuse(request: Request, error: Exception) -> Response:
    served = as_served(error)
    if served.status == 503 and isinstance(error, AwayError):
        log.warning("%s", error)
    elif served.status >= 500 and isinstance(error, ForetokenError) and not isinstance(error, ServeError):
        log.error("a request has failed", exc_info=error)  # of other errors, the HTTP server logs the same
    return JSONResponse(body(served), served.status, headers(served))


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """What pydantic found, in one sentence about the first field that is wrong."""
    if REFUSED in request.scope:
        return await _refuse(request, request.scope[REFUSED])
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]
    if first["type"] == "json_invalid":
        return await _refuse(
            request, ServeError(400, f"the body is not JSON ({cut(str(first.get('ctx', {}).get('error', '')), 80)})")
        )
    return await _refuse(request, invalid(first, place))


async def _http(request: Request, error: HTTPException) -> Response:
    if REFUSED in request.scope:
        return await _refuse(request, request.scope[REFUSED])
    said = {
        404: f"there is nothing at {request.url.path[:80]}; /docs lists what there is",
        405: f"{request.method} is not possible at {request.url.path[:80]}; /docs says what is",
        400: "the body cannot be read; send JSON",
    }.get(error.status_code, str(error.detail))
    return await _refuse(request, ServeError(error.status_code, said))
