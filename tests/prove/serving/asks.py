"""What clients ask for: requests that are drawn, each with what plain decoding answers.

Prompts begin alike, talks go on, and settings are mixed. So the server meets what it may remember, and what it must not
mix up.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.api.model import Model
from foretoken.results.completion import Completion

_MODULES = ("abc", "bisect", "calendar", "copy", "csv", "dis", "heapq", "queue", "shlex", "textwrap", "threading")
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["add", "sub"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
_GRAMMARS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("regex", "[0-9]{3}(-[0-9]{2})?", {"regex": "[0-9]{3}(-[0-9]{2})?"}),
    ("choice", ["return None", "return self", "pass"], {"regex": "return None|return self|pass"}),
    ("json", _SCHEMA, {"json_schema": _SCHEMA}),
)
_STOPS = ("\n\n", "self", ":\n", "\n    ", "e", "(")
_BEGINNINGS = (60, 200, 201, 333, 900, 901, 1500)  # characters
_SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.1},
)


@dataclass(frozen=True)
class Ask:
    """A request, and its answers by plain decoding, in the order of the choices. body: without what each sending
    chooses: whether it streams, and what drafts. echoed: the prompt of each choice, if the answer repeats it; read: the
    log probabilities of its tokens."""

    path: str
    body: dict[str, Any]
    kinds: tuple[str, ...]
    expected: tuple[Completion, ...]
    echoed: tuple[str, ...] = ()
    read: tuple[tuple[float | None, ...], ...] = ()

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return "messages" in self.body


class Drawer:
    """Draws requests. model: decodes plainly. longest: the most characters of a prompt, or nearly so."""

    def __init__(self, model: Model, chance: random.Random, longest: int = 3000) -> None:
        self._model, self._chance, self._longest = model, chance, longest
        folder = Path(sysconfig.get_paths()["stdlib"])
        self._texts = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES]
        self._begun: list[str] = []  # texts that a prompt may go on from
        self._talks: list[list[dict[str, str]]] = []

    def draw(self) -> Ask:
        """The next request."""
        chance = self._chance
        kinds: list[str] = []
        body: dict[str, Any] = {"return_token_ids": True}
        settings = self._settings(body, kinds)
        if chance.random() < 0.35:
            return self._talk(body, settings, kinds)
        prompts: list[Any] = [self._prompt(kinds) for _ in range(chance.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3)))]
        texts = list(prompts)
        if chance.random() < 0.2:
            prompts = [list(self._model.tokens_of(prompt)) for prompt in prompts]
            kinds.append("prompts of token ids")
        if len(prompts) > 1:
            kinds.append("several prompts")
        body["prompt"] = prompts if len(prompts) > 1 else prompts[0]
        if chance.random() < 0.08:
            body["echo"] = True
            kinds.append("echo")
            if "logprobs" in settings:
                settings["prompt_logprobs"] = settings["logprobs"]
        done = [self._model.completions(prompt, **settings) for prompt in prompts]
        for text, its in zip(texts, done, strict=True):
            self._begun.append(text + its[0].text)
        echoed: list[str] = []
        read: list[tuple[float | None, ...]] = []
        for text, its in zip(texts, done, strict=True) if body.get("echo") else ():
            found = its[0].prompt_logprobs
            echoed += [text] * len(its)
            read += [() if found is None else (None, *(each.logprob for each in found))] * len(its)
        every = tuple(each for its in done for each in its)
        return Ask("/v1/completions", body, tuple(kinds), every, tuple(echoed), tuple(read))

    def _talk(self, body: dict[str, Any], settings: dict[str, Any], kinds: list[str]) -> Ask:
        chance = self._chance
        if self._talks and chance.random() < 0.7:
            messages = list(chance.choice(self._talks))
            kinds.append("talks that go on")
        else:
            messages = [{"role": "system", "content": self._piece(20, 120)}]
        messages.append({"role": "user", "content": self._piece(10, 80)})
        kinds.append("talks")
        body["messages"] = messages
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
        done = self._model.completions(messages, **settings)
        if sum(len(each["content"]) for each in messages) < self._longest // 2:
            self._talks.append([*messages, {"role": "assistant", "content": done[0].text or "pass"}])
        return Ask("/v1/chat/completions", body, tuple(kinds), tuple(done))

    def _piece(self, least: int, most: int) -> str:
        text = self._chance.choice(self._texts)
        at, size = self._chance.randrange(len(text) - most), self._chance.randint(least, most)
        return text[at : at + size].strip() or "x = 1"

    def _prompt(self, kinds: list[str]) -> str:
        how = self._chance.random()
        if how < 0.4:  # the beginnings of files, which many prompts share
            kinds.append("prompts that begin alike")
            return self._chance.choice(self._texts)[: min(self._longest, self._chance.choice(_BEGINNINGS))]
        if how < 0.65 and self._begun:
            kinds.append("prompts that go on")
            return self._chance.choice(self._begun)[-self._longest :] + self._piece(1, 30)
        return self._piece(3, 200)

    def _settings(self, body: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
        """How the text is generated, in our names; the body is given OpenAI's."""
        chance = self._chance
        most = chance.choice((1, 2, 5, 9, 16, 24, 32, 48))
        if chance.random() < 0.02:
            most = 150
        settings: dict[str, Any] = {"temperature": 0.0}
        if chance.random() < 0.5:
            settings = {**chance.choice(_SAMPLED), "seed": chance.randrange(2**63)}
        body |= settings
        kinds.append("sampled" if settings["temperature"] else "greedy")
        settings["max_new_tokens"] = body["max_tokens"] = most
        if chance.random() < 0.2:
            settings["n"] = body["n"] = chance.choice((2, 3))
            kinds.append("several texts")
        if chance.random() < 0.12:
            name, given, ours = chance.choice(_GRAMMARS)
            body["structured_outputs"] = {name: given}
            settings |= ours
            kinds.append("grammars")
        elif chance.random() < 0.3:
            stops = chance.sample(_STOPS, chance.choice((1, 1, 2)))
            settings["stop"] = body["stop"] = stops
            if chance.random() < 0.3:
                settings["keep_stop"] = body["include_stop_str_in_output"] = True
            kinds.append("stop strings")
        if chance.random() < 0.15:
            settings["ignore_eos"] = body["ignore_eos"] = True
        if chance.random() < 0.08:
            token = chance.randrange(300, 500)
            settings["logit_bias"] = {token: 4.0}
            body["logit_bias"] = {str(token): 4}
            kinds.append("biased tokens")
        if chance.random() < 0.25:
            settings["logprobs"] = body["logprobs"] = chance.choice((0, 1, 3))
            kinds.append("log probabilities")
        return settings


def sending(ask: Ask, chance: random.Random, levels: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The body of one sending of a request, and what it is one of."""
    body, kinds = dict(ask.body), list(ask.kinds)
    draft = chance.choice((None, None, "none", *levels))
    if draft is not None:
        body["draft"] = draft
        kinds.append(f"draft {draft}")
    if chance.random() < 0.1 and ask.expected[0].text:
        words = ask.expected[0].text.split(" ")
        words[chance.randrange(len(words))] = "other"
        body["prediction"] = {"type": "content", "content": " ".join(words)}
        kinds.append("predictions")
    streams = chance.random() < 0.5 and not (body.get("echo") and "logprobs" in body)
    if streams:
        body["stream"] = True
        if chance.random() < 0.3:
            body["stream_options"] = {"include_usage": True}
        if chance.random() < 0.2:
            body["foretoken"] = {"trace": True}
    kinds.append("streams" if streams else "whole answers")
    json.dumps(body)
    return body, kinds
