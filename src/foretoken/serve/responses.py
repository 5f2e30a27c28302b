"""The form of `/v1/responses`: its plain core, one message of text, whole and as a stream of typed events.

Source: OpenAI's API reference, "Responses" and "Streaming events". The official client builds the text from
`response.output_text.delta` and takes the whole response from `response.completed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretoken.serve import answers
from foretoken.serve.asked import Done, Gained
from foretoken.serve.asking import Wanted
from foretoken.serve.fields import ResponsesBody
from foretoken.serve.forms import Context, Json


class ResponseForm:
    """`/v1/responses`."""

    def __init__(self, context: Context, wanted: Wanted, body: ResponsesBody) -> None:
        self._context, self._wanted, self._body = context, wanted, body
        self._item = context.name.replace("resp", "msg", 1)
        self._sent = 0
        self._text = ""

    def begin(self) -> list[Json]:
        """The response without any output, and then the message without any text."""
        empty = self._response("in_progress", [], None)
        item = self._message("in_progress", None)
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=_part("")),
        ]

    def gained(self, prompt: int, event: Gained) -> list[Json]:
        """The text of a round."""
        text = "".join(piece.text for piece in event.pieces)
        return self._more(text)

    def ended(self, prompt: int, event: Done) -> list[Json]:
        """Nothing: the response ends with its only text."""
        return []

    def end(self, prompts: Sequence[Sequence[Done]]) -> list[Json]:
        """The text, the message and the response, each whole."""
        whole = self.whole(prompts)
        text = prompts[0][0].completion.text
        rest = self._more(text[len(self._text) :])
        kind = "response.completed" if whole["status"] == "completed" else "response.incomplete"
        return [
            *rest,
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=whole["output"][0]),
            self._event(kind, response=whole),
        ]

    def whole(self, prompts: Sequence[Sequence[Done]]) -> Json:
        """The whole response."""
        done = prompts[0][0].completion
        status = "completed" if done.finish_reason == "stop" else "incomplete"
        return self._response(status, [self._message(status, done.text)], prompts)

    def _more(self, text: str) -> list[Json]:
        self._text += text
        return [self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])] if text else []

    @property
    def _place(self) -> Json:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **more: Any) -> Json:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1, **more}

    def _message(self, status: str, text: str | None) -> Json:
        content = [] if text is None else [_part(text)]
        return {"type": "message", "id": self._item, "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[Json], prompts: Sequence[Sequence[Done]] | None) -> Json:
        body, context = self._body, self._context
        settings = self._wanted.settings
        response: Json = {
            "id": context.name,
            "object": "response",
            "created_at": context.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": context.called,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": settings.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": settings.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        if prompts is not None:
            counts = answers.usage(prompts)
            response["usage"] = {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            }
            response |= answers.own(context.model, self._wanted, prompts)
        return response


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
