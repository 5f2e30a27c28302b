"""What a drafter is shown of the rows just committed: each once, from the first of the prompt on, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest
import torch

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.errors import ContractError
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.types import Features, Needs, PromptChunk, Request, SamplingParams, Verdict
from foretoken.verification.local import LocalVerifier
from tests.engine.common import both, request
from tests.fakes import Scripted
from tests.fakes_inside import KeysValues
from tests.world import Plain, Run, chain_of, make_world, read

LAYERS = 3  # of the target
KINDS = {
    "behind the last layer": Needs(hidden=(LAYERS,)),
    "before the first": Needs(hidden=(0,)),
    "within": Needs(hidden=(1,)),
    "several": Needs(hidden=(2, 0, LAYERS)),
    "normed": Needs(normed=True),
    "all": Needs(hidden=(0, 1, 2, LAYERS), normed=True),
    "all, and extractors": Needs(hidden=(1, LAYERS), normed=True, extractors=("keys 0", "values 2")),
    "extractors": Needs(extractors=("values 2",)),
}


class KeysOf:
    """Keys of a layer, or values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[int, int]] = []

    def __call__(self, cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        kind, layer = self.name.split()
        self.calls.append((start, stop))
        return {self.name: cache.read(int(layer))[kind == "values"][start:stop].clone()}


class Watches(Scripted):
    """Keeps what it is shown, by sequence."""

    def __init__(self, truth: Mapping[int, Sequence[int]], needs: Needs, shape: str = "chain") -> None:
        super().__init__(truth, shape)
        self.needs = needs
        self.extractors = [KeysOf("keys 0"), KeysOf("values 2")]
        self.seen: dict[int, list[Features]] = {}

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        super().observe(verdicts)
        for verdict in verdicts:
            assert verdict.features is not None
            self.seen.setdefault(verdict.sequence, []).append(verdict.features)


def names(needs: Needs) -> set[str]:
    hidden = {f"hidden.{layer}" for layer in needs.hidden}
    return hidden | ({"normed"} if needs.normed else set()) | set(needs.extractors)


def truth(target: Decoder, text: Sequence[int]) -> dict[str, torch.Tensor]:
    """All features of a text, layer by layer, in one pass."""
    own = target.new_cache()
    rows = chain(own, list(text))
    hidden = target.embed(list(text))
    found = {"hidden.0": hidden}
    for layer in range(LAYERS):
        hidden = target.layers(hidden, rows, layer, layer + 1)
        found[f"hidden.{layer + 1}"] = hidden
    found["normed"] = target.norm(hidden)
    own.commit(range(len(text)), rows.writer)
    found["keys 0"], found["values 2"] = own.read(0)[0].clone(), own.read(2)[1].clone()
    return {name: tensor.clone() for name, tensor in found.items()}


@cache
def known(arithmetic: str, sequence: int) -> dict[str, torch.Tensor]:
    """Of a plain text of the world, all but the last token, which has no row."""
    world = make_world(arithmetic)
    plain = world.plains[sequence]
    assert world.target.config.num_layers == LAYERS
    return truth(world.target, (plain.prompt + plain.tokens)[:-1])


def expect(seen: Sequence[Features], needs: Needs, right: Mapping[str, torch.Tensor], rows: int) -> None:
    """These features are those of the first rows, each once, in order."""
    at = 0
    for features in seen:
        assert set(features.tensors) == names(needs)
        assert features.start == at
        (count,) = {len(tensor) for tensor in features.tensors.values()}
        at += count
    assert at == rows
    for name in names(needs):
        whole = torch.cat([features.tensors[name] for features in seen])
        assert whole.dtype == right[name].dtype
        assert torch.equal(whole, right[name][:rows]), f"{name} differs in a bit"


def text(plain: Plain) -> tuple[int, ...]:
    return plain.prompt + plain.tokens


@both
@pytest.mark.parametrize("prompt_rows", [256, 10, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_features_are_what_layer_by_layer_gives(kind: str, prompt_rows: int, arithmetic: str) -> None:
    """Of two sequences that share passes, one with a tree; of a prompt in chunks, as it is read."""
    world, needs = make_world(arithmetic), KINDS[kind]
    drafter = Watches({s: text(plain) for s, plain in enumerate(world.plains)}, needs, "tree")
    requests = [Request(s, plain.prompt, 12) for s, plain in enumerate(world.plains)]
    run = Run(world.target, drafter, requests, prefill_chunk=prompt_rows)
    for s, plain in enumerate(world.plains):
        assert run.sequences[s].tokens == plain.tokens[:12]
        expect(drafter.seen[s], needs, known(arithmetic, s), len(plain.prompt) + 11)
        at = 0
        for features, verdict in zip(drafter.seen[s], run.verdicts[s], strict=True):
            at += len(next(iter(features.tensors.values())))
            left = verdict.prompt_left
            assert at == (verdict.position - left if left else verdict.position + len(verdict.tokens) - 1)
        chunks = [verdict for verdict in run.verdicts[s] if verdict.round == 0]
        assert len(chunks) >= len(plain.prompt) // prompt_rows
    assert sum(sum(record.accepted.values()) for record in run.records) > 0
    for extractor in drafter.extractors:
        assert bool(extractor.calls) == (extractor.name in needs.extractors)


@pytest.mark.parametrize("kind", ["behind the last layer", "several", "normed", "all"])
def test_features_are_the_same_without_a_cache(kind: str) -> None:
    world, needs = make_world(), KINDS[kind]
    plain = world.plains[0]
    for prompt_rows in (256, 7):
        drafter = Watches({0: text(plain)}, needs)
        Run(world.target, drafter, [Request(0, plain.prompt, 12)], cached=False, prefill_chunk=prompt_rows)
        expect(drafter.seen[0], needs, known("auto", 0), len(plain.prompt) + 11)


class Turns:
    """Turns of one conversation with one verifier, each with a drafter of its own."""

    def __init__(self, arithmetic: str = "auto") -> None:
        self.world = make_world(arithmetic)
        self.extractors = [KeysOf("keys 0"), KeysOf("values 2")]
        self.verifier = LocalVerifier(self.world.target, extractors=self.extractors)

    def turn(
        self,
        needs: Needs,
        prompt: tuple[int, ...],
        right: Sequence[int] = (),
        *,
        count: int = 4,
        prompt_rows: int = 256,
        rounds: int = 99,
    ) -> tuple[Watches, list[Verdict]]:
        """A turn, or its first rounds."""
        drafter = Watches({0: right or prompt}, needs)
        schedule = Schedule(prompt_rows=prompt_rows)
        run = Engine(self.verifier, drafter, budgets=chain_of(5), schedule=schedule).run(
            [Request(0, prompt, count, conversation=1)]
        )
        verdicts = [verdict for _, (verdict,) in zip(range(rounds), run, strict=False)]
        run.close()
        return drafter, verdicts

    def expect(self, drafter: Watches, prompt: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        """What was shown is right, of all that was committed."""
        said = [token for verdict in verdicts for token in verdict.tokens]
        whole = [*prompt, *said][:-1]
        expect(drafter.seen.get(0, []), drafter.needs, truth(self.world.target, whole), len(whole))


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt_rows", [256, 7])
def test_of_a_conversations_cached_prefix_they_are_those_of_when_it_was_read(
    prompt_rows: int, kind: str, arithmetic: str
) -> None:
    turns, needs = Turns(arithmetic), KINDS[kind]
    plain, other = turns.world.plains
    prompt: tuple[int, ...] = plain.prompt
    before: tuple[int, ...] = ()  # of what has been read, all but the last token
    taken = []
    # it goes on, it is said again, it is cut, another one comes, and it goes on
    for length, more in ((99, ()), (99, ()), (25, other.prompt[:9]), (99, (5, 6)), (3, other.prompt), (1, (9,))):
        prompt = (*prompt[:length], *more)
        drafter, verdicts = turns.turn(needs, prompt, text(plain), prompt_rows=prompt_rows)
        turns.expect(drafter, prompt, verdicts)
        (first,) = [verdict for verdict in verdicts if verdict.round == 0 and verdict.tokens]
        assert first.cached_tokens == agreeing(before, prompt[:-1])
        taken.append(first.cached_tokens)
        prompt = (*prompt, *(token for verdict in verdicts for token in verdict.tokens))
        before = prompt[:-1]
    assert taken == [0, len(plain.prompt) + 3, 25, 37, 3, 1]


@pytest.mark.parametrize("prompt_rows", [256, 7])
def test_what_a_later_turn_needs_and_was_not_kept_is_read_again(prompt_rows: int) -> None:
    """Other features than the turn before: keys and values are there, but not the hidden states."""
    for before, now, again in (
        (Needs(), Needs(hidden=(1,)), True),
        (Needs(hidden=(1,)), Needs(hidden=(1, 2)), True),
        (Needs(hidden=(1, 2)), Needs(hidden=(2,)), False),
        (Needs(hidden=(2,), normed=True), Needs(normed=True), False),
        (Needs(hidden=(LAYERS,)), Needs(normed=True), True),
        (Needs(hidden=(1,)), Needs(), False),
        (Needs(hidden=(1,)), Needs(extractors=("keys 0",)), False),
        (Needs(extractors=("keys 0",)), Needs(extractors=("values 2",)), False),
    ):
        turns = Turns()
        plain = turns.world.plains[0]
        if before == Needs():
            list(
                Engine(turns.verifier, Scripted({0: text(plain)}), budgets=chain_of(5)).run(
                    [Request(0, plain.prompt, 4, conversation=1)]
                )
            )
        else:
            turns.turn(before, plain.prompt, text(plain), prompt_rows=prompt_rows)
        prompt = (*plain.prompt, *plain.tokens[:4], 5, 6, 7)
        if now == Needs():
            (verdict, *_) = [
                each
                for (each,) in Engine(turns.verifier, Scripted({0: prompt}), budgets=chain_of(5)).run(
                    [Request(0, prompt, 4, conversation=1)]
                )
            ]
            assert verdict.features is None
        else:
            drafter, verdicts = turns.turn(now, prompt)
            turns.expect(drafter, prompt, verdicts)
            verdict = verdicts[0]
        assert verdict.cached_tokens == (0 if again else len(plain.prompt) + 3)
    # a third turn after one that needed nothing: what was kept before it is not taken for what follows
    turns = Turns()
    needs = Needs(hidden=(1,))
    turns.turn(needs, plain.prompt, text(plain))
    prompt = (*plain.prompt, *plain.tokens[:4], 5, 6, 7)
    list(
        Engine(turns.verifier, Scripted({0: prompt}), budgets=chain_of(5)).run([Request(0, prompt, 4, conversation=1)])
    )
    prompt = (*prompt, 8, 9)
    drafter, verdicts = turns.turn(needs, prompt)
    turns.expect(drafter, prompt, verdicts)


def test_of_a_turn_that_is_broken_off_they_are_kept_as_far_as_it_was_read() -> None:
    needs = Needs(hidden=(1, LAYERS), normed=True)
    for rounds in range(8):
        turns = Turns()
        plain = turns.world.plains[0]
        _, verdicts = turns.turn(needs, plain.prompt, text(plain), count=20, prompt_rows=9, rounds=rounds)
        prompt = (*plain.prompt, *(token for verdict in verdicts for token in verdict.tokens), 5, 6)
        drafter, now = turns.turn(needs, prompt)
        turns.expect(drafter, prompt, now)
        said = sum(len(verdict.tokens) for verdict in verdicts)
        assert now[0].cached_tokens == (9 * rounds if not said else len(plain.prompt) + said - 1)


@both
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt_rows", [256, 10])
def test_completions_that_share_a_prompt_have_them_of_all_of_it(prompt_rows: int, kind: str, arithmetic: str) -> None:
    world, needs = make_world(arithmetic), KINDS[kind]
    plain = world.plains[0]
    drafter = Watches(dict.fromkeys(range(3), text(plain)), needs)
    requests = [
        Request(
            s,
            plain.prompt,
            8,
            sampling=SamplingParams(temperature=1.2, seed=4),
            completion=s,
            prompt_of=0 if s else None,
        )
        for s in range(3)
    ]
    run = Run(world.target, drafter, requests, prefill_chunk=prompt_rows)
    assert len({run.sequences[s].tokens for s in range(3)}) == 3
    for s in range(3):
        said = (*plain.prompt, *run.sequences[s].tokens)[:-1]
        expect(drafter.seen[s], needs, truth(world.target, said), len(said))
        first = next(verdict for verdict in run.verdicts[s] if verdict.tokens)
        assert first.cached_tokens == (len(plain.prompt) - 1 if s else 0)
    assert len(drafter.seen[1][0].tensors[next(iter(names(needs)))]) == len(plain.prompt), "all of it at once"


def test_what_cannot_be_had_is_refused() -> None:
    verifier = LocalVerifier(make_world().target, extractors=[KeysOf("keys 0")])
    for needs, match in (
        (Needs(hidden=(4,)), "before layer 4; the model has layers 0 to 2, and 3 behind"),
        (Needs(hidden=(1, -1)), "before layer -1"),
        (Needs(extractors=("keys 0", "keys 1")), "the extractor 'keys 1', which is not known here"),
    ):
        with pytest.raises(ContractError, match=f"sequence 0 needs .*{match}"):
            verifier.admit(Request(0, (1, 2), 3, needs=needs))
        assert verifier.caches._caches == {}
    verifier.admit(Request(0, (1, 2), 3, needs=Needs(hidden=(0, 3), extractors=("keys 0",))))


def test_features_own_their_memory() -> None:
    world, caches = make_world(), Caches()
    drafter = KeysValues(world.target)
    needs = Needs(hidden=(0, 1, LAYERS), normed=True, extractors=drafter.needs.extractors)
    verifier = LocalVerifier(world.target, caches, extractors=drafter.extractors)
    asked = Request(0, request().prompt, 20, needs=needs, conversation=1)
    (verdict,) = read(verifier, [asked])
    assert verdict.features is not None
    before = {name: tensor.clone() for name, tensor in verdict.features.tensors.items()}
    caches[0]._memory.keys.fill_(7)
    caches[0]._memory.values.fill_(7)
    assert before.keys() == {"keys", "values", "hidden.0", "hidden.1", "hidden.3", "normed"}
    for name, tensor in verdict.features.tensors.items():
        assert torch.equal(tensor, before[name]), name


def test_who_writes_into_features_does_not_change_what_is_kept_of_them() -> None:
    """They are the drafter's: later turns of the conversation, and completions of the prompt, have them unspoiled."""
    world = make_world()
    plain = world.plains[0]
    needs = Needs(hidden=(1,), normed=True)
    verifier = LocalVerifier(world.target)
    for turn in range(3):
        first = Request(2 * turn, plain.prompt, 9, needs=needs, conversation=1)
        twin = Request(2 * turn + 1, plain.prompt, 9, needs=needs, prompt_of=2 * turn)
        verifier.admit(twin)
        (verdict,) = read(verifier, [first])
        (other,) = verifier.result(verifier.submit([], [PromptChunk(twin.sequence, len(twin.prompt))]))
        for shown in (verdict, other):
            assert shown.features is not None
            for name in ("hidden.1", "normed"):
                right = known("auto", 0)[name][: len(plain.prompt)]
                assert torch.equal(shown.features.tensors[name], right), f"{name} was spoiled in turn {turn}"
                shown.features.tensors[name].fill_(7)
        verifier.end(2 * turn)
        verifier.end(2 * turn + 1)
