"""What tables and figures are made with: models, methods measured in turn, and a record that keeps every generation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from foretoken.api.build import with_draft
from foretoken.api.levels import Loaded
from foretoken.api.model import Model
from foretoken.bench.decode import ask
from foretoken.bench.generations import Generation
from foretoken.bench.reproduce.paper import REFERENCE, Data, Method, Subject
from foretoken.bench.reproduce.places import checkpoint
from foretoken.bench.statistics import rounded
from foretoken.bench.suites import Prompt, Suite, open_suite
from foretoken.bench.target import about, copy_in, expect_honest, expect_prompts, load_target, share_copies
from foretoken.decoder.decoder import Decoder
from foretoken.errors import InputError
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

WARM_UP = 12  # tokens, of the first prompt, with each method

Progress = Callable[[str, int, int], None]  # what comes next, how much of it is done, of how much


class Opened:
    """A model that is loaded, with every method that it was asked to decode with: one copy of the weights."""

    def __init__(self, plain: Model) -> None:
        self.plain = plain
        self.loaded: Loaded = {}
        self._models: dict[tuple[str, bool], Model] = {}

    def with_method(self, method: Method) -> Model:
        """The model that decodes so."""
        key = (method.draft, method.cache)
        if key not in self._models:
            expect_honest(method.draft, self.plain.settings, self.plain.folder)
            self._models[key] = with_draft(self.plain, method.draft, loaded=self.loaded, cache=method.cache)
            share_copies(self.loaded)
            gc.freeze()  # what loading left stays: to look it through for garbage takes as long as dozens of tokens
        return self._models[key]

    def copy(self, format: str) -> Decoder:
        """The model's own copy in a low-bit format, as it drafts."""
        self.with_method(Method(format, format))
        return copy_in(format, self.loaded)


@dataclass
class Workbench:
    """Measures for one record. `subjects` are what is measured at this scale, perhaps fewer than the paper has; `keep`
    writes the record down, and is called whenever there is more in it."""

    scale: str
    subjects: Sequence[Subject]
    record: dict[str, Any]
    loading: LoadSettings
    work: Path
    keep: Callable[[], None]
    progress: Progress
    part: str = ""  # that is being made
    _opened: tuple[str, Opened] | None = field(init=False, default=None)

    def open(self, subject: Subject) -> Opened:
        """A subject's model. The one before is let go: two large ones need not fit."""
        if self._opened is None or self._opened[0] != subject.called:
            self._opened = None
            self.progress(f"{self.part}: loading {subject.called}", 0, 1)
            name = checkpoint(subject, self.work)
            plain = load_target(name, (), self.loading).plain
            layers = {"num_layers": plain.target.config.num_layers}
            self._expect_same(subject, {**about(name, plain, self.record), **layers})
            self._opened = subject.called, Opened(plain)
        return self._opened[1]

    def measured(
        self, subject: Subject, data: Data, methods: Sequence[Method], temperature: float = 0.0
    ) -> list[Generation]:
        """Every prompt with every method, in turn (A B A B; every second prompt in the other order), and by the
        reference, with which every text is compared. What the record has already is not measured again."""
        if REFERENCE not in methods:
            methods = (REFERENCE, *methods)
        entry = self._measurement(subject, data, methods, temperature)
        kept = [g for g in self.record["generations"] if g["measurement"] == entry["measurement"]]
        done = {line["prompt"] for line in kept}
        if entry["prompts"] is None or len(done) < entry["prompts"]:
            self._measure(entry, subject, data, methods, done)
            kept = [g for g in self.record["generations"] if g["measurement"] == entry["measurement"]]
        return [Generation.read(line) for line in kept]

    def suite(self, subject: Subject, data: Data, count: int | None = None) -> Suite:
        """The prompts of some data, the first `count` of them, as a subject's tokenizer divides them."""
        most = data.count if count is None else count
        return open_suite(data.suite, self.open(subject).plain.tokenizer, count=most)

    def new_tokens(self, subject: Subject, data: Data) -> int:
        """How many new tokens each prompt of some data may have."""
        return data.max_new_tokens or self.suite(subject, data).max_new_tokens

    def num_layers(self, subject: Subject) -> int:
        """Of its model; one that the record knows need not be loaded for that."""
        if subject.called not in self.record["models"]:
            self.open(subject)
        layers: int = self.record["models"][subject.called]["num_layers"]
        return layers

    def complete(
        self,
        subject: Subject,
        method: Method,
        prompt: Prompt,
        number: int,
        max_new_tokens: int,
        temperature: float = 0.0,
    ) -> list[Completion]:
        """A prompt's turns, with what each round did. Its number is its seed."""
        settings = GenerateSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=number, keep_rounds=True
        )
        return ask(self.open(subject).with_method(method), prompt, settings)

    def watched(
        self, subject: Subject, method: Method, prompt: Prompt, tokens: Sequence[int], truth: Sequence[int]
    ) -> None:
        """Note of a text that was not generated for its time whether it is how the truth begins."""
        line = {"model": subject.called, "method": method.name, "prompt": prompt.id}
        differing = sum(one != other for one, other in zip_longest(tokens, truth[: len(tokens)]))
        others = [each for each in self.record["watched"] if any(each[name] != line[name] for name in line)]
        self.record["watched"] = [*others, {**line, "tokens": len(tokens), "differing": differing}]

    def _expect_same(self, subject: Subject, its: dict[str, Any]) -> None:
        before = self.record["models"].setdefault(subject.called, rounded(its))
        if before.get("model_sha256") != its["model_sha256"]:
            raise InputError(
                f"the record's {subject.called} had other weights than this one; name another folder for the record, "
                "or remove it"
            )

    def _measurement(
        self, subject: Subject, data: Data, methods: Sequence[Method], temperature: float
    ) -> dict[str, Any]:
        """What the record says of a measurement; a new entry if it is not there."""
        asked = {
            "model": subject.called,
            "suite": data.suite.partition("=")[0] if "=" in data.suite else Path(data.suite).name,
            "count": data.count,
            "max_new_tokens": data.max_new_tokens,
            "temperature": temperature,
            "methods": [[m.name, m.draft, m.cache] for m in methods],
        }
        for entry in self.record["measurements"]:
            if all(entry[name] == value for name, value in asked.items()):
                found: dict[str, Any] = entry
                return found
        entry = {"measurement": len(self.record["measurements"]), **asked, "prompts": None, "sha256": None}
        self.record["measurements"].append(entry)
        return entry

    def _measure(
        self, entry: dict[str, Any], subject: Subject, data: Data, methods: Sequence[Method], done: set[str]
    ) -> None:
        opened, suite = self.open(subject), self.suite(subject, data)
        if entry["sha256"] not in (None, suite.sha256):
            raise InputError(
                f"the prompts of {entry['suite']} are others than those that the record was begun with; name another "
                "folder for the record, or remove it"
            )
        most, temperature = self.new_tokens(subject, data), entry["temperature"]
        expect_prompts(suite, opened.plain, most)
        entry |= suite.about()
        where = f"{self.part}: {subject.called}, {entry['suite']}"
        for method in methods:
            self.progress(f"{where}: warming up {method.name}", 0, 1)
            ask(opened.with_method(method), suite.prompts[0], GenerateSettings(max_new_tokens=min(most, WARM_UP)))
        for number, prompt in enumerate(suite.prompts):
            if prompt.id in done:
                continue
            self.progress(f"{where}, {len(methods)} methods, prompt {prompt.id}", number, len(suite.prompts))
            order = methods if number % 2 == 0 else methods[::-1]
            texts = {method: self.complete(subject, method, prompt, number, most, temperature) for method in order}
            for method in methods:
                generation = Generation.of(texts[method], texts[REFERENCE], method=method.name, prompt=prompt.id)
                line = {"measurement": entry["measurement"], **rounded(generation.to_json())}
                self.record["generations"].append(line)
            self.keep()
        self.progress(where, len(suite.prompts), len(suite.prompts))
