"""`foretoken tune fractal`: where fractal layers gain most, and whether a plainer draft gains more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from foretoken.bench.decode import Progress
from foretoken.bench.statistics import PLAIN, rounded
from foretoken.bench.suites import Prompt, Suite, open_suite
from foretoken.bench.target import about, expect_prompts, load_target
from foretoken.bench.tuning import costs, finals
from foretoken.bench.tuning.asked import Asked
from foretoken.bench.tuning.budget import Budget, OutOfTimeError
from foretoken.bench.tuning.costs import Costs
from foretoken.bench.tuning.search import Found, Placement, Space, Step, search
from foretoken.bench.tuning.trials import Trace, Trials
from foretoken.common.provenance import provenance
from foretoken.errors import SettingError
from foretoken.prices.measuring import ROWS
from foretoken.results.completion import Completion

KIND = "tune-fractal"
CHAINS = (4, 8, 2)  # tokens a round of the chains that are tried beside it
LOOKUP = "lookup"
_CHAINS_SHARE = 0.4  # of the time, at most, goes to other drafts before fractal ones are tried
_FINALS_SHARE = 0.4  # of the time, at most, is kept for measuring
_MANY_LAYERS = 8  # for how many fractal layers the costs of passes are measured, not continued


def tune(asked: Asked, progress: Progress | None = None) -> dict[str, Any]:
    """The record of a search. progress: is told what comes next, and how many drafts were tried.

    Raises ForetokenError for what cannot be tuned.
    """
    origin = provenance()
    plain = load_target(asked.model, (*asked.formats, LOOKUP), asked.loading).plain
    suite = open_suite(asked.prompts, plain.tokenizer, count=asked.num_prompts)
    expect_prompts(suite, plain, asked.max_new_tokens)
    choosing, measuring = _divided(suite)
    trials = Trials(plain, choosing, asked.max_new_tokens, progress or (lambda *_: None))
    tuning = _Tuning(asked, trials, Budget(60 * asked.minutes))
    tuning.run(len(choosing), measuring)
    return {
        "kind": KIND,
        **origin,
        **about(asked.model, plain, origin),
        "num_layers": plain.target.config.num_layers,
        "promise": tuning.promise,
        "asked": asked.to_json(),
        "suite": suite.about(),
        "prompts": {"choosing": [p.id for p in choosing], "measuring": [p.id for p in measuring]},
        **tuning.results(),
    }


def _divided(suite: Suite) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """Prompts to choose on, and others to measure on; of one prompt it is both."""
    return suite.prompts[::2], suite.prompts[1::2] or suite.prompts


@dataclass
class Candidate:
    """A draft that was tried: what it did, and the tokens a second that follow."""

    draft: str
    kind: str  # "fractal", "chain" or "lookup"
    trace: Trace
    tokens_per_second: float


@dataclass
class _Tuning:
    asked: Asked
    trials: Trials
    budget: Budget
    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    finals: list[finals.Final] = field(default_factory=list)
    generations: list[dict[str, Any]] = field(default_factory=list)
    repeats: int = 0
    costs: Costs = field(init=False)
    _longest: float = 0.0  # seconds of a trial

    def run(self, count: int, measuring: Sequence[Prompt]) -> None:
        """From plain decoding to the drafts that were measured."""
        truth = self._truth(count)
        self.costs = self._costs(truth)
        seconds = sum(c.stats.prefill_seconds + c.stats.decode_seconds for c in truth)
        one_repeat = 6 * seconds * len(measuring) / len(self.trials.prompts)  # of plain decoding and five drafts
        self.budget.reserve = min(_FINALS_SHARE * self.budget.seconds, self.asked.repeats * one_repeat)
        others = self._others(
            [(LOOKUP, None), *((f"{f}:tokens={k}", f) for k in CHAINS for f in self.asked.formats)], _CHAINS_SHARE
        )
        space = Space(self.costs.num_layers, self.asked.windows, self.asked.formats, self.asked.slots)
        self.found = search(space, self._judge)
        self.left_out += _unfinished(self.found)
        self.left_out += [draft for draft, _ in self._others(others, 1.0)]
        # a fractal draft has a lookup in it: the copy that is sped up by one is what it must be measured beside
        chosen = _best_of_kinds(self.candidates)
        chosen += [f"{self.asked.formats[0]},{LOOKUP}"] if chosen != [PLAIN] else []
        self.finals, self.generations, self.repeats = finals.measure(
            self.trials, chosen, measuring, self.asked.repeats, self.budget.has
        )
        if self.repeats < self.asked.repeats:
            self.left_out.append(f"{self.asked.repeats - self.repeats} of {self.asked.repeats} repeats")
        if not self.finals:
            raise SettingError("no prompt had a second token, so there is no speed; give other prompts")

    def _truth(self, count: int) -> list[Completion]:
        completions: list[Completion] = []
        for number, prompt in enumerate(self.trials.prompts):
            self._tell(f"plain decoding, prompt {number + 1} of {count}; then the costs of passes")
            completions += self.trials.truth(prompt, number)
        return completions

    def _costs(self, truth: Sequence[Completion]) -> Costs:
        copies = {}
        for format in self.asked.formats:
            self._tell(f"making the {format} copy; then the costs of passes")
            copies[format] = self.trials.copy(format)
        self._tell("the costs of passes; then those of rounds")
        target = self.trials.plain.target
        room = self.trials.plain.context_length
        most = 2 + max(*self.asked.windows, *CHAINS) + min(_MANY_LAYERS, target.config.num_layers)
        most = min(most, ROWS[-1], room // 2)
        prefix = max(1, min(round(median(c.prompt_tokens + len(c.tokens) / 2 for c in truth)), room - most))
        made = costs.measure(target, copies, prefix=prefix, most=most)
        # what rounds take besides, on the first prompt; twice, as what runs first is slower
        first, format = self.trials.prompts[:1], self.asked.formats[0]
        start = Placement((target.config.num_layers // 2,), self.asked.windows[0], format, self.asked.slots[0])
        timed = {}
        for draft in 2 * (PLAIN, start.draft, f"{format}:tokens={CHAINS[0]}"):
            self._tell(f"the costs of rounds: {draft}; then other drafts")
            timed[draft] = self.trials.timed(draft, first)
        plain, fractal, chain = timed.values()
        return made.with_rest(plain, fractal, chain, format)

    def _others(self, drafts: Sequence[tuple[str, str | None]], share: float) -> list[tuple[str, str | None]]:
        """Try chains and lookup, within a share of the time; what was not tried."""
        for place, (draft, format) in enumerate(drafts):
            try:
                trace = self._trial(draft, share)
            except OutOfTimeError:
                return list(drafts[place:])
            speed = self.costs.lookup(trace) if format is None else self.costs.chain(format, trace)
            self.candidates.append(Candidate(draft, LOOKUP if format is None else "chain", trace, speed))
        return []

    def _judge(self, its: Placement) -> float:
        trace = self._trial(its.draft, 1.0)
        speed = self.costs.fractal(its.format, trace)
        self.candidates.append(Candidate(its.draft, "fractal", trace, speed))
        return speed

    def _trial(self, draft: str, share: float) -> Trace:
        name = draft.partition(":")[0]
        # the first of each is tried
        if any(candidate.draft.partition(":")[0] == name for candidate in self.candidates):
            self.budget.expect(self._longest, share=share)
        self._tell(f"trying {draft}")
        began = self.budget.used
        trace = self.trials.trace(draft)
        self._longest = max(self._longest, self.budget.used - began)
        return trace

    def _tell(self, what: str) -> None:
        self.trials.progress(what, len(self.candidates), 0)

    @property
    def promise(self) -> str:
        """The least of all completions'."""
        promises = [candidate.trace.promise for candidate in self.candidates]
        return min(promises + [str(line["promise"]) for line in self.generations])

    def results(self) -> dict[str, Any]:
        """What a record says of them."""
        plain = self.costs.plain()
        return {
            "costs": rounded(self.costs.to_json()),
            "plain_tokens_per_second": rounded(plain),
            "steps": [rounded(_step(step, plain)) for step in self.found.steps],
            "candidates": [rounded(_line(candidate, plain)) for candidate in self.candidates],
            "best_fractal": None if self.found.best is None else self.found.best[0].draft,
            "finals": [rounded(asdict(final)) for final in self.finals],
            "repeats": self.repeats,
            "recommended": finals.recommended(self.finals),
            "left_out": self.left_out,
            "seconds": rounded(self.budget.used),
            "differing_tokens": sum(c.trace.differing for c in self.candidates)
            + sum(line["differing"] for line in self.generations),
            "generations": [rounded(line) for line in self.generations],
        }


def _step(step: Step, plain: float) -> dict[str, Any]:
    tried = [{"draft": placement.draft, "speedup": speed / plain} for placement, speed in step.tried]
    best = None if step.best is None else step.best[0].draft
    return {"n": step.n, "varied": step.varied, "best": best, "not_tried": step.left, "tried": tried}


def _line(candidate: Candidate, plain: float) -> dict[str, Any]:
    trace = candidate.trace
    return {
        "draft": candidate.draft,
        "kind": candidate.kind,
        "predicted_tokens_per_second": candidate.tokens_per_second,
        "predicted_speedup": candidate.tokens_per_second / plain,
        "accepted": trace.accepted,
        "tokens": trace.tokens,
        "differing": trace.differing,
        "rounds": trace.rounds,
        "ran": trace.ran,
    }


def _unfinished(found: Found) -> list[str]:
    """What of a search there was no time for."""
    if found.ended or not found.steps:
        return []
    last = found.steps[-1]
    many = "layer" if last.n == 1 else "layers"
    varied = f"choices of {last.varied}" if last.varied != "layer" else "places"
    return [f"with {last.n} fractal {many}, {last.left} of {last.left + len(last.tried)} {varied}, and what follows"]


def _best_of_kinds(candidates: Sequence[Candidate]) -> list[str]:
    """What is measured: of each kind what is predicted to be fastest, and the second of the fractal ones, in that
    order; none whose tokens differed."""
    sound = sorted((c for c in candidates if c.trace.differing == 0), key=lambda c: -c.tokens_per_second)
    fractal = [c for c in sound if c.kind == "fractal"][:2]
    others = [next((c for c in sound if c.kind == kind), None) for kind in ("chain", LOOKUP)]
    chosen = [*fractal, *(c for c in others if c is not None)]
    return [c.draft for c in sorted(chosen, key=lambda c: -c.tokens_per_second)] or [PLAIN]
