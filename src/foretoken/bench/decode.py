"""How fast is decoding with each draft, beside plain decoding? `foretoken bench decode`.

Every prompt is generated plainly and with each draft in turn, A B A B, on one copy of the target's weights in one
process; in every second repeat the order is turned round. What is compared is what stands beside each other in time,
so that a machine that is slower for a while is slower for all.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretoken.bench import answers as spec_bench
from foretoken.bench.runs import KIND, PLAIN, summarise
from foretoken.bench.samples import Journal, Sample
from foretoken.bench.suites import Prompt, Suite, open_suite
from foretoken.build import Loaded, find_levels, load, with_draft
from foretoken.copies.fingerprint import fingerprint
from foretoken.errors import SettingError
from foretoken.ladder import name_levels
from foretoken.model import Model
from foretoken.provenance import provenance
from foretoken.rehearsal import honest
from foretoken.settings import GenerateSettings, LoadSettings
from foretoken.source import resolve
from foretoken.types import Completion

WARM_UP = 12  # tokens, of the first prompt, with each draft

Progress = Callable[[str, int, int], None]  # what comes next, how many samples are done, of how many


@dataclass(frozen=True)
class Asked:
    """What is to be measured. prompts: a suite's name or a file, `count` of them; None: all. max_new_tokens: of each
    turn; None: what the suite allows. Raises SettingError."""

    model: str
    drafts: Sequence[str]
    prompts: str = "heldout-20"
    count: int | None = None
    max_new_tokens: int | None = None
    temperatures: Sequence[float] = (0.0,)
    repeats: int = 3
    ignore_eos: bool = False
    loading: LoadSettings = field(default_factory=LoadSettings)

    def __post_init__(self) -> None:
        for name in ("repeats", "count"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SettingError(f"{name} is {value!r}, expected a whole number, 1 or more")
        for what, given in (("draft", self.every_draft), ("temperature", self.temperatures)):
            twice = next((value for value in given if list(given).count(value) > 1), None)
            if twice is not None:
                raise SettingError(f"{what} {twice!r} was given twice; give it once")
        for temperature in self.temperatures:
            self.settings(temperature, 0, 1)

    @property
    def every_draft(self) -> list[str]:
        """The drafts, plain decoding first: what all are compared with."""
        return [PLAIN, *(draft.strip() for draft in self.drafts if draft.strip() != PLAIN)]

    def settings(self, temperature: float, seed: int, max_new_tokens: int, **more: Any) -> GenerateSettings:
        """How a prompt is generated; its number is its seed."""
        return GenerateSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, ignore_eos=self.ignore_eos, **more
        )


def measure(
    asked: Asked, *, record: Path | None = None, answers: bool = False, progress: Progress | None = None
) -> tuple[dict[str, Any], list[Sample]]:
    """The record of a measurement, and its samples.

    record: where it will be written; the samples are kept in `journal_of` it, and the same call goes on with them, so
    who has written the record removes that. answers: keep lines for Spec-Bench's scripts. Raises ForetokenError for
    what cannot be measured, a draft that would not be honest among it.
    """
    origin = provenance()
    plain = _plain(asked)
    suite = open_suite(asked.prompts, plain.tokenizer, count=asked.count)
    models, loaded = {PLAIN: plain}, Loaded()
    for draft in asked.every_draft[1:]:
        models[draft] = with_draft(plain, draft, loaded=loaded)
    gc.freeze()  # what loading left stays: to look it through for garbage takes as long as dozens of tokens
    new_tokens = asked.max_new_tokens or suite.max_new_tokens
    about = _about(asked, origin, plain, suite, new_tokens)
    journal = Journal(record, about)
    _Measurement(asked, models, suite.prompts, new_tokens, journal, answers, progress or (lambda *_: None)).run()
    return {**origin, **about, **_results(asked, models, journal.samples)}, journal.samples


def _plain(asked: Asked) -> Model:
    """The model without a draft. All drafts are looked at before it is loaded."""
    folder = resolve(asked.model, asked.loading.revision)
    for draft in asked.every_draft:
        for level in find_levels(name_levels(_with(asked.loading, draft)), folder):
            if level.folder is not None:
                honest.expect_honest_draft(folder, level.folder)
    return load(asked.model, **asdict(_with(asked.loading, PLAIN)))


def _with(loading: LoadSettings, draft: str) -> LoadSettings:
    return LoadSettings.of({**asdict(loading), "draft": draft})


def _about(asked: Asked, origin: dict[str, Any], model: Model, suite: Suite, new_tokens: int) -> dict[str, Any]:
    """What is measured, on what: the same for a measurement that goes on with another."""
    from foretoken.kernels import native

    rehearsal = honest.about(model.folder)
    return {
        "kind": KIND,
        "commit": origin["commit"],
        "machine": {
            **origin["machine"],
            "threads": model.target.threads,
            "level": native.level() if native.module() is not None else None,
        },
        "versions": origin["versions"],
        "model": Path(asked.model).name,
        "model_sha256": fingerprint(model.folder, model.target.config),
        "model_bytes": model.target.weights.nbytes,
        "rehearsal": None if rehearsal is None else rehearsal.to_json(),
        "arithmetic": model.target.arithmetic,
        "weights": asked.loading.weights,
        "dtype": str(model.target.weights.embedding.dtype).removeprefix("torch."),
        "suite": {
            "name": suite.name,
            "sha256": suite.sha256,
            "prompts": len(suite.prompts),
            "source": suite.source,
            "licence": suite.licence,
        },
        "max_new_tokens": new_tokens,
        "ignore_eos": asked.ignore_eos,
        "temperatures": list(asked.temperatures),
        "repeats": asked.repeats,
        "drafts": asked.every_draft,
    }


def _results(asked: Asked, models: dict[str, Model], samples: list[Sample]) -> dict[str, Any]:
    runs = [
        summarise(samples, draft, temperature, models[draft].weight_bytes)
        for temperature in asked.temperatures
        for draft in asked.every_draft
    ]
    if not any(runs):
        raise SettingError("no prompt had a second token, so there is no speed; allow more new tokens, or ignore_eos")
    bandwidths = sorted(s.bandwidth / 1e9 for s in samples if s.bandwidth)
    return {
        "read_bandwidth_gb_per_s": round(bandwidths[len(bandwidths) // 2], 2) if bandwidths else None,
        "read_bandwidth_range_gb_per_s": [round(bandwidths[0], 2), round(bandwidths[-1], 2)] if bandwidths else None,
        "weight_bytes": {draft: model.weight_bytes for draft, model in models.items()},
        "runs": [_rounded(asdict(run)) for run in runs if run is not None],
    }


def _rounded(value: Any) -> Any:
    """Numbers as far as they mean something: five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass
class _Measurement:
    asked: Asked
    models: dict[str, Model]
    prompts: Sequence[Prompt]
    new_tokens: int
    journal: Journal
    answers: bool
    progress: Progress

    def run(self) -> None:
        """Everything that the journal does not have yet."""
        had = {sample.key for sample in self.journal.samples}
        groups = [
            (repeat, number, prompt, temperature)
            for repeat in range(self.asked.repeats)
            for number, prompt in enumerate(self.prompts)
            for temperature in self.asked.temperatures
        ]
        total, done = len(groups) * len(self.models), len(had)
        if done < total:
            self._warm_up()
            bandwidth = _bandwidth(self.models[PLAIN])
        for repeat, number, prompt, temperature in groups:
            order = list(self.models) if repeat % 2 == 0 else list(self.models)[::-1]
            missing = [draft for draft in order if (draft, temperature, prompt.id, repeat) not in had]
            measured = bandwidth() if missing else None
            for draft in missing:
                self.progress(f"{draft}, {prompt.id}", done, total)
                self.journal.add(self._sample(draft, temperature, number, prompt, repeat, measured))
                done += 1
        self.progress("", total, total)

    def _warm_up(self) -> None:
        for draft, model in self.models.items():
            self.progress(f"warming up {draft}", 0, 1)
            for temperature in self.asked.temperatures:
                ask(model, self.prompts[0], self.asked.settings(temperature, 0, min(self.new_tokens, WARM_UP)))

    def _sample(
        self, draft: str, temperature: float, number: int, prompt: Prompt, repeat: int, bandwidth: float | None
    ) -> Sample:
        keeps = self.answers and repeat == 0
        settings = self.asked.settings(temperature, number, self.new_tokens, keep_rounds=keeps)
        completions = ask(self.models[draft], prompt, settings)
        return Sample.of(
            completions,
            draft=draft,
            temperature=temperature,
            prompt=prompt.id,
            repeat=repeat,
            bandwidth=bandwidth,
            answer=spec_bench.answer_line(prompt, completions, f"{Path(self.asked.model).name}-{draft}")
            if keeps
            else None,
        )


def ask(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
    """A model's replies to the turns of a prompt: through its chat template where both are meant for one."""
    template = prompt.chat and model.tokenizer is not None and model.tokenizer.has_chat_template
    if len(prompt.turns) == 1 and not template:
        return [model.generate(prompt.turns[0], settings)]
    chat = model.chat(plain=not template)
    completions = []
    for turn in prompt.turns:
        if not isinstance(turn, str):
            raise SettingError(f"prompt {prompt.id} is a talk in token ids; give its turns as text")
        stream = chat.send(turn, settings)
        for _ in stream:
            pass
        completions.append(stream.completion)
    return completions


def _bandwidth(model: Model) -> Callable[[], float | None]:
    """What memory gives just now, in bytes a second; unknown without the native module."""
    from foretoken.bench.ceilings import Ceiling
    from foretoken.kernels import native

    if native.module() is None:
        return lambda: None
    return Ceiling(model.target.threads, native.level()).measure


def write_answers(folder: Path, samples: Sequence[Sample]) -> list[Path]:
    """Write the answers that samples hold into a folder, a file a draft and temperature, for Spec-Bench's scripts."""
    by_file: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        if sample.answer is not None:
            name = re.sub(r"[^0-9A-Za-z.]+", "-", sample.draft).strip("-")
            by_file.setdefault(f"{name}-temperature-{sample.temperature:g}.jsonl", []).append(sample.answer)
    for name, lines in by_file.items():
        spec_bench.write_answers(folder / name, lines)
    return [folder / name for name in by_file]
