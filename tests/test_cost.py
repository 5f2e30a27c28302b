"""What a generation costs is what its decoders counted while it ran, whatever drafts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.drafters.fractal import FractalDrafter, Guesses
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.table import DRAFTERS
from foretoken.protocol.telemetry import Cost, together
from foretoken.results.stats import Stats
from tests.costs import cost_of
from tests.costs import counting as counting
from tests.tiny import needs_native
from tests.tiny import one_thread as one_thread

PROMPT = "def read(self, size=-1):\n    return self."
DRAFTS = (*DRAFTERS, "fractal:n=2:w=3", "stdlib-1m", "stdlib-1m:k=2:depth=3")
DRAFTS += ("int4", "int8:own-cache", "int4,lookup", "int4,int2,lookup")


@cache
def plain() -> Model:
    return foretoken.load("stdlib-1m", draft="none", threads=1, pace="fixed")


@cache
def model(draft: str) -> Model:
    return with_draft(plain(), draft)


def generate(draft: str, **settings: Any) -> foretoken.Completion:
    return model(draft).generate(PROMPT, max_new_tokens=24, ignore_eos=True, keep_rounds=True, **settings)


def embedded(model: Model, level: str, rows: int) -> int:
    """The bytes of so many rows of a level's embedding."""
    embedding = model.decoders[level].weights.embedding
    return rows * embedding.shape[1] * embedding.element_size()


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_decoder_of_a_draft_is_counted(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Decoder] = []
    really = Decoder.__init__

    def init(decoder: Decoder, *given: Any, **named: Any) -> None:
        made.append(decoder)
        really(decoder, *given, **named)

    plainly = plain()
    monkeypatch.setattr(Decoder, "__init__", init)
    drafting = with_draft(plainly, draft)
    assert list(drafting.decoders.values()) == [plainly.target, *made]
    assert [name for name in drafting.levels if name in drafting.decoders] == [*drafting.decoders][1:]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_generation_costs_what_its_rounds_do(draft: str) -> None:
    drafting = model(draft)
    before = {name: cost_of(decoder) for name, decoder in drafting.decoders.items()}
    done = generate(draft)
    assert done.rounds is not None
    assert set(done.stats.cost) == set(drafting.decoders)
    assert done.stats.cost == together(r.cost for r in done.rounds[1:])
    whole = together(r.cost for r in done.rounds)
    assert whole == {name: cost_of(decoder) - before[name] for name, decoder in drafting.decoders.items()}
    # the prompt is read in the first round, which is no decoding
    prompt = drafting.target.weights.nbytes + embedded(drafting, "target", done.prompt_tokens)
    assert done.rounds[0].cost["target"].weight_bytes == prompt
    for cost in done.stats.cost.values():
        assert min(cost.flops, cost.weight_bytes, cost.cache_bytes) > 0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["none", "lookup", "stdlib-1m", "stdlib-1m:k=2:depth=3", "int4", "int8:own-cache"])
def test_weights_are_those_of_the_passes(draft: str, sampling: dict[str, Any]) -> None:
    """Every pass of these goes through all layers and the output layer: to count the passes says the same."""
    drafting, done = model(draft), generate(draft, **sampling)
    stats, target = done.stats, drafting.target.weights
    rows = stats.passes + stats.draft_tokens
    assert stats.cost["target"].weight_bytes == stats.passes * target.nbytes + embedded(drafting, "target", rows)
    for level in stats.levels:
        if level.name in drafting.decoders:
            weights = drafting.decoders[level.name].weights
            expected = level.passes * weights.nbytes + embedded(drafting, level.name, level.rows)
            assert stats.cost[level.name].weight_bytes == expected > 0
    assert len(stats.cost) == 1 + sum(level.name in drafting.decoders for level in stats.levels)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "no cache"])
@pytest.mark.parametrize("spec", ["fractal:layers=1:w=3", "fractal:n=2:w=1"])
def test_a_fractal_draft_is_a_pass_of_the_model_and_one_of_the_copy_at_each_layer(
    spec: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = plain() if cached else foretoken.load("stdlib-1m", draft="none", threads=1, pace="fixed", cache=False)
    drafting, watched = with_draft(plainly, f"{spec}:slots=fixed"), list[Guesses]()
    drafter = drafting.drafter
    assert isinstance(drafter, FractalDrafter)
    drafter.watch = watched
    monkeypatch.setattr(FractalDrafter, "_has_settled", PublishedFractalDrafter._has_settled)
    monkeypatch.setattr(FractalDrafter, "_known", PublishedFractalDrafter._known)
    done = drafting.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    target, copy = drafting.target.weights, drafting.decoders["fractal"].weights
    level, rounds = done.stats.levels[0], done.stats.passes
    assert level.passes == len(drafter.layers) * len(watched) > 5
    text = [1 if cached else draft.position for draft in watched]  # rows of it in each pass
    inner = [  # of slots, as each guess is embedded: what is chosen last needs no row
        min(len(guess), len(draft.tokens[-1]) - 1) for draft in watched for guess in draft.tokens[:-1]
    ]
    read = sum(inner) + (0 if cached else sum(text) * len(drafter.layers))
    assert done.stats.cost["fractal"].weight_bytes == level.passes * copy.nbytes + embedded(drafting, "fractal", read)
    first = [min(drafter.window, len(draft.tokens[-1]) - 1) for draft in watched]
    drafted = len(watched) * target.nbytes + embedded(drafting, "target", sum(text) + sum(first))
    assert rounds >= len(watched)
    checked = done.stats.cost["target"].weight_bytes - drafted - rounds * target.nbytes
    if cached:
        assert checked == embedded(drafting, "target", rounds + done.stats.draft_tokens)
    else:
        assert checked >= embedded(drafting, "target", sum(text) + done.stats.draft_tokens)


def test_a_pass_that_chooses_nothing_reads_no_output_layer() -> None:
    """A prompt is read in chunks, also by a copy with a cache of its own: only the last one of the target chooses."""
    drafting = model("int8:own-cache,lookup")
    prompt = tuple(range(2, 602))
    done = drafting.generate(prompt, max_new_tokens=24, ignore_eos=True, keep_rounds=True)
    assert done.rounds is not None
    first, last, *others = done.rounds
    assert [[*r.read.values()] for r in done.rounds] == [[512], [len(prompt) - 512], *([] for _ in others)]
    for name in ("target", "int8"):
        weights = drafting.decoders[name].weights
        short = weights.nbytes - weights.head.nbytes - weights.norm.nbytes
        assert first.cost[name].weight_bytes == short + embedded(drafting, name, 512)
    whole = drafting.target.weights.nbytes
    assert last.cost["target"].weight_bytes == whole + embedded(drafting, "target", len(prompt) - 512)
    assert "int8" not in last.cost, "the rest it reads when it drafts"


def test_what_a_level_s_cache_lacks_is_read_before_it_checks_or_in_the_pass_that_checks() -> None:
    """A level that checks what another drafts lacks the prompt, which it reads first and chooses nothing; and
    a token after drafts that were all right, which rides in the next check."""
    drafting, done = model("int8:own-cache,lookup"), generate("int8:own-cache,lookup")
    int8, lookup = done.stats.levels
    weights = drafting.decoders["int8"].weights
    assert int8.passes > 1
    assert int8.rows > int8.passes + lookup.draft_tokens + done.prompt_tokens - 1, "more than roots and drafts"
    head = weights.head.nbytes + weights.norm.nbytes
    every = int8.passes * weights.nbytes - head + embedded(drafting, "int8", int8.rows)
    assert done.stats.cost["int8"].weight_bytes == every, "all passes but the prompt's read all weights once"


def test_with_fewer_passes_more_is_computed_and_less_is_read() -> None:
    plainly, drafted = generate("none").stats, generate("lookup").stats
    assert drafted.passes < plainly.passes
    assert drafted.cost["target"].weight_bytes < plainly.cost["target"].weight_bytes
    assert drafted.cost["target"].flops > plainly.cost["target"].flops


def test_generations_in_turn_have_each_their_own_cost() -> None:
    alone = generate("int4").stats.cost
    streams = [model("int4").stream(PROMPT, max_new_tokens=24, ignore_eos=True) for _ in range(2)]
    for _ in zip(*streams, strict=True):
        pass
    for stream in streams:
        list(stream)
        assert stream.completion.stats.cost == alone


def test_generations_at_once_have_each_their_own_cost() -> None:
    """Threads share the decoders, and what one of them costs is no other's."""
    alone = generate("int4").stats.cost
    with ThreadPoolExecutor(3) as threads:
        for done in threads.map(lambda _: generate("int4"), range(6)):
            assert done.stats.cost == alone


def test_completions_that_share_passes_have_the_cost_of_all() -> None:
    drafting, alone = model("int4"), generate("int4")
    one, other = drafting.completions(PROMPT, max_new_tokens=24, ignore_eos=True, n=2, keep_rounds=True)
    assert one.tokens == other.tokens == alone.tokens
    assert alone.rounds is not None
    assert one.rounds is not None
    assert other.rounds is not None
    # the other copies the prompt but its last token, reads that a round later, and so ends a round later
    assert one.rounds == other.rounds[:-1]
    assert len(one.rounds) == len(alone.rounds)
    prompt = alone.prompt_tokens
    (first,), (second,) = one.rounds[0].read, one.rounds[1].read
    assert [r.read for r in other.rounds] == [{first: prompt}, {second: 1}, *({} for _ in other.rounds[2:])]
    assert one.stats.cost == together(r.cost for r in one.rounds[1:])
    assert other.stats.cost == together(r.cost for r in other.rounds[2:])
    # all that both compute, but for what was copied
    whole, its = (together(r.cost for r in rounds)["target"] for rounds in (other.rounds, alone.rounds))
    target = drafting.target
    before = cost_of(target)
    target.forward(chain(target.new_cache(), drafting.tokens_of(PROMPT)[:-1]))
    assert whole.flops == 2 * its.flops - (cost_of(target) - before).flops
    # the weights are read once for both
    rows = prompt + 1 + sum(1 + drafted for r in other.rounds for drafted in r.drafted.values())
    assert whole.weight_bytes == len(other.rounds) * target.weights.nbytes + embedded(drafting, "target", rows)


def test_a_generation_that_ends_with_its_prompt_costs_nothing_more() -> None:
    done = model("int4").generate(PROMPT, max_new_tokens=1)
    assert done.stats.cost == {}
    assert Stats().cost == {}


@needs_native
def test_native_and_pytorch_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate("none").stats.cost
    monkeypatch.setattr("foretoken.decoder.decoder.why_not", lambda weights: "a test asks for it")
    done = foretoken.load("stdlib-1m", draft="none", threads=1, pace="fixed").generate(
        PROMPT, max_new_tokens=24, ignore_eos=True
    )
    assert done.arithmetic == "pytorch"
    assert done.stats.cost == expected != {"target": Cost()}
