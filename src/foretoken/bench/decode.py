"""How fast is decoding with each draft, beside plain decoding? `foretoken bench decode`.

Every prompt is decoded plainly and with each draft in turn, A B A B, on one copy of the target's weights in one
process. The order is reversed from prompt to prompt and, for one prompt, from repeat to repeat. Only neighbours in time
are compared, so that a machine that is slow for a while is slow for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretoken.api.model import Model
from foretoken.bench import answers as spec_bench
from foretoken.bench.fields import expect_once
from foretoken.bench.runs import KIND, summarise
from foretoken.bench.samples import Journal, Sample
from foretoken.bench.statistics import PLAIN, bandwidths, rounded
from foretoken.bench.suites import Prompt
from foretoken.bench.target import Ready, Settings
from foretoken.common.provenance import provenance
from foretoken.errors import InputError, SettingError
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings

WARM_UP = 12  # new tokens for the first prompt, with each draft

Progress = Callable[[str, int, int], None]  # what comes next, how many samples are done, of how many


@dataclass(frozen=True)
class Asked(Settings):
    """What is to be measured. Raises SettingError."""

    temperatures: Sequence[float] = (0.0,)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_once("temperature", self.temperatures)
        for temperature in self.temperatures:
            self.settings(temperature, 0, 1)

    def settings(self, temperature: float, seed: int, max_new_tokens: int, **more: Any) -> GenerateSettings:
        """The settings to generate a prompt; its number is its seed."""
        return GenerateSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, ignore_eos=self.ignore_eos, **more
        )


def measure(
    asked: Asked, *, record: Path | None = None, answers: bool = False, progress: Progress | None = None
) -> tuple[dict[str, Any], list[Sample]]:
    """Measure; returns the record and the samples.

    record: the file that the record will be written to. `journal_of(record)` keeps the samples, and a repeated call
    continues from them, so the caller removes the journal after writing the record. answers: keep lines for
    Spec-Bench's scripts. Raises ForetokenError for what cannot be measured, such as a draft that would not be honest.
    """
    origin = provenance()
    opened = asked.opened(origin)
    measured = {
        "kind": KIND,
        "commit": origin["commit"],
        "versions": origin["versions"],
        **opened.about,
        "ignore_eos": asked.ignore_eos,
        "temperatures": list(asked.temperatures),
        "drafts": list(opened.models),
        "answers": answers,
    }
    journal = Journal(record, measured)
    _complete(journal, asked, opened, answers, progress or (lambda *_: None))
    return {**origin, **measured, **results(measured, journal.samples)}, journal.samples


def results(measured: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """The figures of a measurement, and the samples behind them. measured: the settings, as a record has them."""
    runs = [
        summarise(samples, draft, temperature)
        for temperature in measured["temperatures"]
        for draft in measured["drafts"]
    ]
    if not any(runs):
        raise SettingError("no prompt had a second token, so there is no speed; allow ignore_eos, or other prompts")
    return {
        **bandwidths(sample.bandwidth for sample in samples),
        "runs": [rounded(asdict(run)) for run in runs if run is not None],
        "samples": [sample.to_json() for sample in samples],
    }


def _complete(journal: Journal, asked: Asked, opened: Ready, answers: bool, progress: Progress) -> None:
    """Measure every sample that the journal lacks."""
    groups = [
        (repeat, number, prompt, temperature)
        for repeat in range(asked.repeats)
        for number, prompt in enumerate(opened.suite.prompts)
        for temperature in asked.temperatures
    ]
    models = list(opened.models.items())
    # only neighbours in time are compared, so an unfinished group is measured again as a whole
    counts = Counter((s.repeat, s.prompt, s.temperature) for s in journal.samples)
    whole = {group for group, count in counts.items() if count == len(models)}
    journal.keep(lambda s: (s.repeat, s.prompt, s.temperature) in whole)
    total = len(groups) * len(models)
    if len(journal.samples) < total:
        _warm_up(asked, opened, progress)
        bandwidth = _bandwidth(opened.models[PLAIN])
    for repeat, number, prompt, temperature in groups:
        if (repeat, prompt.id, temperature) in whole:
            continue
        known = {"prompt": prompt.id, "temperature": temperature, "repeat": repeat, "bandwidth": bandwidth()}
        settings = asked.settings(temperature, number, opened.new_tokens, keep_rounds=answers and repeat == 0)
        # the order is reversed with every prompt and, for one prompt, with every repeat
        for draft, model in models if (repeat + number) % 2 == 0 else models[::-1]:
            progress(f"{draft}, {prompt.id}", len(journal.samples), total)
            completions, answer = ask(model, prompt, settings), None
            if settings.keep_rounds:
                answer = spec_bench.answer_line(prompt, completions, f"{Path(asked.model).name}-{draft}")
            journal.add(Sample.of(completions, draft=draft, answer=answer, **known))
    progress("", total, total)


def _warm_up(asked: Asked, opened: Ready, progress: Progress) -> None:
    count = min(opened.new_tokens, WARM_UP)
    for draft, model in opened.models.items():
        progress(f"warming up {draft}", 0, 1)
        for temperature in asked.temperatures:
            ask(model, opened.suite.prompts[0], asked.settings(temperature, 0, count))


def ask(model: Model, prompt: Prompt, settings: GenerateSettings) -> list[Completion]:
    """A model's replies to a prompt's turns, in its chat template if it has one and the prompt is a chat."""
    template = prompt.chat and model.tokenizer is not None and model.tokenizer.has_chat_template
    if len(prompt.turns) == 1 and not template:
        return [model.generate(prompt.turns[0], settings)]
    chat = model.chat(plain=not template)
    completions = []
    for turn in prompt.turns:
        assert isinstance(turn, str), prompt  # expect_prompts refused all others
        stream = chat.send(turn, settings)
        for _ in stream:
            pass
        completions.append(stream.completion)
    return completions


def _bandwidth(model: Model) -> Callable[[], float | None]:
    """A function that measures memory's speed in bytes per second; it returns None on a GPU or without native code."""
    from foretoken.bench.ceilings import bandwidth

    return bandwidth(model.target.threads) if model.settings.device == "cpu" else lambda: None


def write_answers(folder: Path, samples: Sequence[Sample]) -> list[Path]:
    """Write the samples' answers into a folder for Spec-Bench's scripts, one file per draft and temperature."""
    by_file: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.answer is not None:
            name = re.sub(r"[^0-9A-Za-z.]+", "-", sample.draft).strip("-")
            by_file.setdefault(f"{name}-temperature-{sample.temperature:g}.jsonl", []).append(sample)
    for name, its in by_file.items():
        if len({sample.draft for sample in its}) > 1:
            drafts = " and ".join(dict.fromkeys(sample.draft for sample in its))
            raise InputError(f"answers of {drafts} would lie in one file, {name}; measure them one by one")
        spec_bench.write_answers(folder / name, [sample.answer for sample in its if sample.answer is not None])
    return [folder / name for name in by_file]
