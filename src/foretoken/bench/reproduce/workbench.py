"""Measures for tables and figures: loads models, runs methods in turn, and keeps every generation in a record."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.api.model import Model
from foretoken.bench.decode import WARM_UP, Progress, ask
from foretoken.bench.generations import Generation, Generations, in_turn
from foretoken.bench.reproduce.asked import Asked, checkpoint, small_checkpoint
from foretoken.bench.reproduce.papers import REFERENCE, Data, Method, Subject
from foretoken.bench.statistics import rounded
from foretoken.bench.suites import Prompt, Suite, digest, first_turn, open_suite
from foretoken.bench.target import Target, about, expect_prompts, load_target
from foretoken.decoder.streaming import stream_of
from foretoken.errors import InputError, ModelNotFoundError
from foretoken.protocol.types import Request, SamplingParams
from foretoken.sampling.sampler import Sampler
from foretoken.settings.generate import GenerateSettings

_GREEDY = SamplingParams(temperature=0.0)
_ANOTHER = "name another folder for the record, or remove it"


class Accepted(NamedTuple):
    """Draft tokens accepted per check on average, their share of a whole draft, and the number of checks."""

    each: float | None
    share: float | None
    checks: int


@dataclass(frozen=True)
class Measured(Generations):
    """The generations of a subject by some methods. data: the name of its prompts. new_tokens: that each prompt may
    have. copies: bytes of the weights that each method drafts with, beside the target's own."""

    data: str = ""
    subject: Subject | None = None
    num_layers: int = 0
    new_tokens: int = 0
    copies: Mapping[str, int] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """Subject and data for tables; empty if nothing was measured."""
        return "" if self.subject is None else f"{self.subject.called}, {self.data}"

    def accepted(self, method: str, most: int) -> Accepted:
        """The acceptance over the checks that had room for a draft of `most` tokens."""
        rounds = [each for own in self.of(method) for each in own.whole_rounds(most, self.new_tokens)]
        if not rounds:
            return Accepted(None, None, 0)
        accepted = sum(count for _, count in rounds) / len(rounds)
        return Accepted(accepted, accepted / most, len(rounds))

    def checks(self, method: str) -> int:
        """How many passes checked a draft of a method, empty drafts included."""
        return sum(len(each.rounds) for each in self.of(method))


def _without_noise(request: Request) -> Sampler:
    """The sampler of a draft that ranks tokens by its own probabilities alone."""
    return Sampler(replace(request, sampling=_GREEDY))


@dataclass
class Workbench:
    """Measures for one record. subjects: what is measured at this scale, perhaps fewer than the paper has. keep: writes
    the record down; called whenever the record has more in it."""

    asked: Asked
    subjects: Sequence[Subject]
    record: dict[str, Any]
    keep: Callable[[], None]
    progress: Progress
    part: str = ""  # the table or figure that is being made
    _opened: dict[str, Target] = field(init=False, default_factory=dict)  # one at most, by its subject's name

    def open(self, subject: Subject) -> Target:
        """A subject's model. The previous model is released, because memory may not hold two large ones."""
        if subject.called not in self._opened:
            self._opened.clear()
            gc.unfreeze()  # loading has frozen reference cycles, which hold the weights
            gc.collect()
            self.progress(f"{self.part}: loading {subject.called}", 0, 1)
            name = checkpoint(subject, self.asked.work)
            try:
                target = load_target(name, (), replace(self.asked.loading, **subject.loading))
            except ModelNotFoundError as error:
                if self.asked.scale != "paper":
                    raise
                raise ModelNotFoundError(f"{error}; --models takes a folder that holds the paper's") from None
            its = {**about(name, target.plain, self.record), "num_layers": target.plain.target.config.num_layers}
            before = self.record["models"].setdefault(subject.called, rounded(its))
            if before.get("model_sha256") != its["model_sha256"]:
                raise InputError(f"the record's {subject.called} had other weights than this one; {_ANOTHER}")
            self._opened[subject.called] = target
        return self._opened[subject.called]

    def small(self, subject: Subject) -> str:
        """What a draft calls the checkpoint that drafts for a subject."""
        return small_checkpoint(subject, self.asked.work)

    def model(self, subject: Subject, method: Method) -> Model:
        """A subject's model that decodes by a method, but for how far it reads ahead."""
        model = self.open(subject).model(method.draft, cache=method.cache)
        if not method.noise:
            drafter: Any = model.drafter
            drafter.samplers = _without_noise
        return model

    def read_ahead(self, subject: Subject, method: Method) -> None:
        """From now on a subject's layers are read as far ahead as a method says."""
        stream = stream_of(self.open(subject).plain.target.weights)
        if stream is not None:
            stream.read_ahead(method.read_ahead)

    def suite(self, subject: Subject, data: Data) -> Suite:
        """The prompts of some data for a subject; its tokenizer cuts them if `data.cut` is set."""
        plain = self.open(subject).plain
        suite = open_suite(data.suite, plain.tokenizer, count=data.count)
        if data.cut is None:
            return suite
        prompts = tuple(Prompt(each.id, (first_turn(each, plain.tokenizer)[: data.cut],)) for each in suite.prompts)
        return replace(suite, prompts=prompts, sha256=digest(prompts))

    def num_layers(self, subject: Subject) -> int:
        """The number of layers of a subject's model, which is loaded only if the record does not know it."""
        if subject.called not in self.record["models"]:
            self.open(subject)
        layers: int = self.record["models"][subject.called]["num_layers"]
        return layers

    def in_place_of(self, model: str, data: str, methods: Callable[[int], Sequence[Method]]) -> Measured:
        """What was measured in place of a model and a data set of the paper. methods: by the number of layers."""
        for subject in self.subjects:
            if subject.model == model and data in subject.data:
                return self.measured(subject, subject.data[data], methods(self.num_layers(subject)))
        return Measured()

    def measured(self, subject: Subject, data: Data, methods: Sequence[Method], temperature: float = 0.0) -> Measured:
        """Measure every prompt with every method in turn (A B A B; every second prompt in reverse order), and with the
        reference, whose texts all others are compared with. What the record has already is not measured again."""
        if REFERENCE not in methods:
            methods = (REFERENCE, *methods)
        asked = {
            "model": subject.called,
            "suite": data.called,
            "count": data.count,
            "max_new_tokens": data.max_new_tokens,
            "cut": data.cut,
            "temperature": temperature,
            "methods": [[m.name, self._told(m.draft, subject), m.cache, *m.more] for m in methods],
        }
        entries = self.record["measurements"]
        entry = next((each for each in entries if asked.items() <= each.items()), None)
        if entry is None:
            nothing: dict[str, Any] = {"prompts": None, "sha256": None, "copies": {}, "quantisers": {}}
            entry = {"measurement": len(entries), **asked, **nothing}
            entries.append(entry)
        done = {line["prompt"] for line in self._lines(entry)}
        if entry["prompts"] is None or len(done) < entry["prompts"]:
            self._measure(entry, done, subject, self.suite(subject, data), methods)
        generations = [Generation.read(line) for line in self._lines(entry)]
        new_tokens = data.max_new_tokens or self.suite(subject, data).max_new_tokens
        return Measured(generations, data.called, subject, self.num_layers(subject), new_tokens, entry["copies"])

    def watched(
        self, subject: Subject, method: Method, prompt: Prompt, tokens: Sequence[int], truth: Sequence[int]
    ) -> None:
        """Note whether a text that was not timed equals the start of the reference text."""
        line = {"model": subject.called, "method": method.name, "prompt": prompt.id}
        differing = sum(one != other for one, other in zip_longest(tokens, truth[: len(tokens)]))
        others = [each for each in self.record["watched"] if not line.items() <= each.items()]
        self.record["watched"] = [*others, {**line, "tokens": len(tokens), "differing": differing}]

    def _told(self, draft: str, subject: Subject) -> str:
        """A draft as the record names it: where a rehearsal lies is this machine's affair."""
        if subject.small_shape is not None:
            folder = Path(self.small(subject))
            draft = draft.replace(str(folder), folder.name)
        return re.sub(r"/[^,:]*/", "", draft)  # of trained drafters

    def _lines(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        return [line for line in self.record["generations"] if line["measurement"] == entry["measurement"]]

    def _measure(
        self, entry: dict[str, Any], done: set[str], subject: Subject, suite: Suite, methods: Sequence[Method]
    ) -> None:
        """Measure the prompts that a measurement lacks. done: the prompts that it has."""
        target = self.open(subject)
        if entry["sha256"] not in (None, suite.sha256):
            raise InputError(
                f"the prompts of {entry['suite']} are others than those that the record was begun with; {_ANOTHER}"
            )
        most = entry["max_new_tokens"] or suite.max_new_tokens
        expect_prompts(suite, target.plain, most)
        entry |= suite.about()
        where = f"{self.part}: {entry['model']}, {entry['suite']}"
        how = GenerateSettings(max_new_tokens=most, temperature=entry["temperature"], keep_rounds=True)
        models, by_name = {}, {method.name: method for method in methods}
        for method in methods:
            self.progress(f"{where}: warming up {method.name}", 0, 1)
            model = models[method.name] = self.model(subject, method)
            copies = [decoder for decoder in model.decoders.values() if decoder is not model.target]
            entry["copies"][method.name] = sum(decoder.weights.nbytes for decoder in copies)
            entry["quantisers"] |= {
                source.called: "direct" if level.copy is None else level.copy.quantiser
                for source, level in target.loaded.items()
                if source.format is not None and source.called in model.decoders
            }
            ask(models[method.name], suite.prompts[0], replace(how, max_new_tokens=min(most, WARM_UP)))

        def before(name: str) -> None:
            self.read_ahead(subject, by_name[name])

        for number, prompt in enumerate(suite.prompts):
            if prompt.id not in done:
                self.progress(f"{where}, {len(methods)} methods, prompt {prompt.id}", number, len(suite.prompts))
                for each in in_turn(models, REFERENCE.name, prompt, replace(how, seed=number), number, before):
                    line = {"measurement": entry["measurement"], **rounded(each.to_json())}
                    self.record["generations"].append(line)
                self.keep()
        self.progress(where, len(suite.prompts), len(suite.prompts))
