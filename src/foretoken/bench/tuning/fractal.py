"""`foretoken tune fractal`: where fractal layers gain most, and whether a plainer draft gains more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from foretoken.bench.decode import Progress
from foretoken.bench.generations import Generation, Generations, in_turn
from foretoken.bench.statistics import PLAIN, rounded
from foretoken.bench.suites import Prompt, open_suite
from foretoken.bench.target import Target, about, expect_prompts, load_target
from foretoken.bench.tuning.asked import Asked
from foretoken.bench.tuning.search import Budget, OutOfTimeError, Placement, search, unfinished
from foretoken.bench.tuning.trials import CHAIN, FRACTAL, LOOKUP, Costs, Trials, accepted_a_round, measure
from foretoken.common.provenance import provenance
from foretoken.errors import SettingError
from foretoken.prices.measuring import ROWS
from foretoken.results.completion import Completion

KIND = "tune-fractal"
CHAINS = (4, 8, 2)  # tokens per round of the chains that are tried as well
_CHAINS_SHARE = 0.4  # most of the time that other drafts may take before fractal ones are tried
_FINALS_SHARE = 0.4  # most of the time that is kept for measuring
_MANY_LAYERS = 8  # up to so many fractal layers, the costs of passes are measured, not extrapolated


def tune(asked: Asked, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Search; returns the record. progress: called with what comes next and how many drafts were tried."""
    origin = provenance()
    target = load_target(asked.model, (*asked.formats, LOOKUP), asked.loading)
    suite = open_suite(asked.prompts, target.plain.tokenizer, count=asked.num_prompts)
    expect_prompts(suite, target.plain, asked.max_new_tokens)
    # prompts to choose on, and others to measure on; a single prompt is used for both
    choosing, measuring = suite.prompts[::2], suite.prompts[1::2] or suite.prompts
    found = _Tuning(asked, target, choosing, progress).run(measuring)
    return {
        "kind": KIND,
        **origin,
        **about(asked.model, target.plain, origin),
        "num_layers": target.plain.target.config.num_layers,
        "asked": asked.to_json(),
        "suite": suite.about(),
        "prompts": {"choosing": [p.id for p in choosing], "measuring": [p.id for p in measuring]},
        **rounded(found),
    }


class _Tuning:
    def __init__(self, asked: Asked, target: Target, prompts: Sequence[Prompt], progress: Progress) -> None:
        self.asked, self.target, self.progress = asked, target, progress
        self.budget = Budget(60 * asked.minutes)
        self.trials = Trials(target, prompts, asked.max_new_tokens, self.tell)
        self.candidates: list[dict[str, Any]] = []  # as the record has them
        self.left_out: list[str] = []
        self.longest = 0.0  # seconds of the longest trial

    def tell(self, what: str) -> None:
        """Report what comes next."""
        self.progress(what, len(self.candidates), 0)

    def run(self, measuring: Sequence[Prompt]) -> dict[str, Any]:
        """Run the search from plain decoding to the measured drafts; returns the record's fields."""
        truth = [completion for turns in self.trials.truth for completion in turns]
        self.costs = self._costs(truth)
        seconds = sum(c.stats.prefill_seconds + c.stats.decode_seconds for c in truth)
        one_repeat = 6 * seconds * len(measuring) / len(self.trials.prompts)  # of plain decoding and five drafts
        self.budget.reserve = min(_FINALS_SHARE * self.budget.seconds, self.asked.repeats * one_repeat)
        first = self.asked.formats[0]
        others = [(LOOKUP, LOOKUP, first), *((f"{f}:tokens={k}", CHAIN, f) for k in CHAINS for f in self.asked.formats)]
        self._try_others(others, _CHAINS_SHARE)
        steps = search(
            self.costs.num_layers, self.asked.choices, lambda its: self._judge(its.draft, FRACTAL, its.format)
        )
        self._try_others(others, 1.0)
        self.left_out += [*unfinished(steps), *(draft for draft, _, _ in others)]
        # a fractal draft contains a lookup, so it must be measured beside a copy with a lookup
        chosen = best_of_kinds(self.candidates)
        turns = self._measure([PLAIN, *chosen, f"{first},{LOOKUP}"] if chosen else [PLAIN], measuring)
        measured = list(finals(Generations([each for _, each in turns])))
        if not measured:
            raise SettingError("no prompt had a second token, so there is no speed; give other prompts")
        generations = [{"repeat": repeat, **each.to_json()} for repeat, each in turns]
        fractal = [line for line in self.candidates if line["kind"] == FRACTAL]
        best = max(fractal, key=lambda line: float(line["predicted_speedup"]), default={"draft": None})
        return {
            "promise": min(self.trials.promise, *(each.promise for _, each in turns)),
            "costs": self.costs.to_json(),
            "plain_tokens_per_second": self.costs.plain(),
            "steps": steps,
            "candidates": self.candidates,
            "best_fractal": best["draft"],
            "finals": measured,
            "repeats": 1 + turns[-1][0],
            "recommended": recommended(measured),
            "left_out": self.left_out,
            "seconds": self.budget.used,
            "differing_tokens": sum(line["differing"] for line in (*self.candidates, *generations)),
            "generations": generations,
        }

    def _costs(self, truth: Sequence[Completion]) -> Costs:
        copies = {}
        for format in self.asked.formats:
            self.tell(f"making the {format} copy; then the costs of passes")
            copies[format] = self.target.copy(format)
        self.tell("the costs of passes; then those of rounds")
        model, room = self.target.plain.target, self.target.plain.context_length
        most = 2 + max(*self.asked.windows, *CHAINS) + min(_MANY_LAYERS, model.config.num_layers)
        most = min(most, ROWS[-1], room // 2)
        prefix = max(1, min(round(median(c.prompt_tokens + len(c.tokens) / 2 for c in truth)), room - most))
        made = measure(model, copies, prefix=prefix, most=most)
        # the other costs of rounds, on the first prompt; twice, because the first run is slower
        window, format, slots = (values[0] for values in self.asked.choices.values())
        start = Placement(frozenset({model.config.num_layers // 2}), window, format, slots)
        traces = {}
        for draft in 2 * (PLAIN, start.draft, f"{format}:tokens={CHAINS[0]}"):
            self.tell(f"the costs of rounds: {draft}; then other drafts")
            traces[draft] = self.trials.trace(draft, 1)
        plain, fractal, chain = traces.values()
        return made.with_rest(plain, fractal, chain, format)

    def _try_others(self, waiting: list[tuple[str, str, str]], share: float) -> None:
        """Try drafts that are not fractal, within a share of the time; drafts that were not tried stay in `waiting`."""
        with suppress(OutOfTimeError):
            while waiting:
                self._judge(*waiting[0], share)
                del waiting[0]

    def _judge(self, draft: str, kind: str, format: str, share: float = 1.0) -> float:
        """Try a draft; returns its predicted speed-up. The first draft of each name is tried whatever the time."""
        name = draft.partition(":")[0]
        if any(line["draft"].partition(":")[0] == name for line in self.candidates):
            self.budget.expect(self.longest, share=share)
        self.tell(f"trying {draft}")
        began = self.budget.used
        trace = self.trials.trace(draft)
        self.longest = max(self.longest, self.budget.used - began)
        speed = self.costs.speed(kind, format, trace)
        predicted = {"predicted_tokens_per_second": speed, "predicted_speedup": speed / self.costs.plain()}
        self.candidates.append({"draft": draft, "kind": kind, **predicted, **trace.to_json()})
        return predicted["predicted_speedup"]

    def _measure(self, drafts: Sequence[str], prompts: Sequence[Prompt]) -> list[tuple[int, Generation]]:
        """Measure every prompt with every draft in turn, once, and again while there is time for one more repeat.
        Returns each generation with its repeat."""
        models = {draft: self.target.model(draft) for draft in drafts}
        made: list[tuple[int, Generation]] = []
        began, repeats = self.budget.used, self.asked.repeats
        for repeat in range(repeats):
            used = self.budget.used
            if repeat and used + (used - began) / repeat > self.budget.seconds:
                self.left_out.append(f"{repeats - repeat} of {repeats} repeats")
                break
            for number, prompt in enumerate(prompts):
                how, turn = self.trials.how(number), repeat + number

                def tell(name: str, prompt: Prompt = prompt) -> None:
                    self.tell(f"measuring {name}, prompt {prompt.id}")

                every = in_turn(models, PLAIN, prompt, how, turn, tell)
                made += [(repeat, each) for each in every]
        return made


def best_of_kinds(candidates: Sequence[dict[str, Any]]) -> list[str]:
    """The drafts to measure, by predicted speed-up: the best of each kind, and the second-best fractal draft; none
    whose tokens differed."""
    sound = [line for line in candidates if line["differing"] == 0]
    sound.sort(key=lambda line: -line["predicted_speedup"])
    best = {kind: [line for line in sound if line["kind"] == kind] for kind in (FRACTAL, CHAIN, LOOKUP)}
    return [line["draft"] for line in sound if line in best[line["kind"]][: 2 if line["kind"] == FRACTAL else 1]]


def finals(measured: Generations) -> Iterator[dict[str, Any]]:
    """The measured drafts: tokens per second of decoding, and the speed-up over plain decoding of the same prompt
    beside it, both medians over prompts; the speed-up's interval at 95 %; `accepted` draft tokens per check. A draft
    that never had a second token is left out."""
    for draft in measured.methods:
        own, (gained, interval) = measured.of(draft), measured.speedup(draft, PLAIN)
        if gained is not None:
            yield {
                "draft": draft,
                "tokens_per_second": measured.tokens_per_second(draft),
                "speedup": gained,
                "interval": interval,
                "accepted": accepted_a_round([each for generation in own for each in generation.rounds]),
                "differing": sum(each.differing for each in own),
            }


def recommended(finals: Sequence[Mapping[str, Any]]) -> str:
    """The draft that was measured to be fastest, among those whose every token equals plain decoding's; plain decoding
    if none is faster."""
    sound = [final for final in finals if final["differing"] == 0 and final["speedup"] > 1]
    return str(max(sound, key=lambda final: float(final["speedup"]))["draft"]) if sound else PLAIN
