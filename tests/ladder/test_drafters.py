"""From what a user calls a draft to a drafter."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

import foretoken
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.drafters.recipe import Context, Level, LoadedLevel, recipe_of
from foretoken.drafters.table import DRAFTERS
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import DraftSpecError
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Request, Turn
from foretoken.sampling.samplers import Samplers
from foretoken.settings.load import LoadSettings
from tests.tiny import tiny_decoder

no_target = cast("Decoder", None)


@dataclass
class Spoken:
    """A tokenizer as far as ladders look at one."""

    vocabulary: dict[int, str]


def never(level: Level) -> Any:
    raise AssertionError(f"{level.name} was loaded")


def drafter_of(draft: str, num_speculative_tokens: int | None = None) -> tuple[Any, int]:
    levels = name_levels(LoadSettings(draft=draft, num_speculative_tokens=num_speculative_tokens))
    return Context(no_target, None, Samplers(None), "walk", never).make(levels), levels[0].tokens


def test_a_draft_becomes_the_drafter_that_it_names() -> None:
    assert isinstance(drafter_of("none")[0], NothingDrafter)
    assert isinstance(drafter_of("lookup")[0], LookupDrafter)
    assert isinstance(drafter_of("lookup")[0], LookupDrafter)


@pytest.mark.parametrize("name", [name for name, entry in DRAFTERS.items() if not recipe_of(entry).has_decoder])
def test_every_drafter_in_the_table_can_be_made_without_a_model_and_is_called_what_the_table_says(name: str) -> None:
    drafter, tokens = drafter_of(name)
    assert drafter.name == name
    assert tokens == DRAFTERS[name].num_speculative_tokens


def test_how_many_tokens_are_drafted_is_said_by_the_draft_or_the_setting_or_the_table() -> None:
    assert drafter_of("lookup:tokens=3")[1] == 3
    assert drafter_of("lookup", 5)[1] == 5
    assert drafter_of("lookup:tokens=5", 5)[1] == 5  # the same number twice is no contradiction
    assert drafter_of("lookup")[1] == 8


def test_a_tree_with_another_tokenizer_is_refused_with_the_first_difference() -> None:
    one, other = Spoken({0: "a", 1: "b", 2: "c"}), Spoken({0: "a", 1: "x"})
    (level,) = name_levels(LoadSettings(draft="somebody/something:k=2:depth=3"))

    def make(theirs: Any, ours: Any) -> Drafter:
        loaded = LoadedLevel(tiny_decoder(), theirs)
        return Context(tiny_decoder(), ours, Samplers(None), "walk", lambda level: loaded).make([level])

    with pytest.raises(DraftSpecError) as error:
        make(other, one)
    assert str(error.value) == (
        "draft 'somebody/something' has another tokenizer: token 1 is 'x' there and 'b' in the model; only a chain can "
        "be translated: leave 'k' and 'depth' out, or use a draft of the model's own family"
    )
    with pytest.raises(DraftSpecError, match=r"token 2 is None there and 'c' in the model"):
        make(Spoken({0: "a", 1: "b"}), one)
    with pytest.raises(DraftSpecError, match=r"draft 'somebody/something' has no tokenizer"):
        make(None, one)
    with pytest.raises(DraftSpecError, match=r"the model has no tokenizer"):
        make(one, None)
    assert make(one, one).name == make(None, None).name == "something"


def test_lookup_follows_shorter_matches_for_the_model_than_for_another_draft() -> None:
    for spec, least in (
        ("lookup", None),
        ("mxfp4,lookup", 2),
        ("mxfp4,int2,lookup", 2),
        ("mxfp4,lookup:min_match=1", 1),
    ):
        assert name_levels(LoadSettings(draft=spec))[-1].options.get("min_match") == least
    drafter = drafter_of("lookup")[0]
    drafter.begin([Request(0, (5, 6, 5), 9)])
    assert drafter.propose([Turn(0, 1, 3, 2, 2)])[0].tokens == (6, 5)


@pytest.mark.parametrize(
    "spec",
    [
        "stdlib-1m",
        "stdlib-1m,lookup",
        "stdlib-1m:tokens=4,stdlib-1m,lookup:tokens=3",
        "stdlib-1m:k=3:depth=4",
        "stdlib-1m:k=2,lookup",
    ],
)
def test_ladders_of_embedded_models_say_what_plain_decoding_says(spec: str) -> None:
    prompt = "def read(self, size=-1):\n    "
    plain = foretoken.load("stdlib-7m", draft="none").generate(prompt, max_new_tokens=40)
    done = foretoken.load("stdlib-7m", draft=spec, pace="fixed").generate(prompt, max_new_tokens=40)
    assert done.tokens == plain.tokens
    assert done.stats.accepted_tokens > 0
    assert set(done.origins) >= {"target", "stdlib-1m"}


@pytest.mark.parametrize(
    ("spec", "tokens"), [("lookup", (4,)), ("lookup:min_match=2", (4,)), ("lookup:min_match=3", ())]
)
def test_the_options_of_lookup_reach_it(spec: str, tokens: tuple[int, ...]) -> None:
    prompt = (1, 2, 4, 1, 2)  # it ends as it began, for two tokens
    drafter, _ = drafter_of(spec)
    drafter.begin([Request(0, prompt, 9)])
    (draft,) = drafter.propose([Turn(0, 1, len(prompt), rows=1, depth=1)])
    assert draft.tokens == tokens


def test_a_draft_that_is_the_model_itself_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="foretoken"):
        done = foretoken.load("stdlib-1m", draft="stdlib-1m", pace="fixed").generate("def add(", max_new_tokens=8)
        foretoken.load("stdlib-7m", draft="stdlib-1m", pace="fixed")
    assert done.tokens == foretoken.load("stdlib-1m", draft="none").generate("def add(", max_new_tokens=8).tokens
    # on a busy machine others may be there: a pass of equal models was timed as much slower than the other's
    (told,) = (said for said in caplog.messages if "cannot speed up" not in said)
    assert told.startswith("the draft stdlib-1m is the model itself, so a draft token takes as long as")


# -- whose keys and values a copy drafts on ---------------------------------------------------------------------------


def ladder(spec: str, caches: Caches | None) -> list[Any]:
    """The drafters of a ladder, nearest to the target first."""
    target = tiny_decoder()
    context = Context(target, None, Samplers(None), "walk", lambda level: LoadedLevel(target), views=caches)
    drafter: Any = context.make(name_levels(LoadSettings(draft=spec)))
    levels = []
    while drafter is not None:
        levels.append(drafter)
        drafter = getattr(drafter, "inner", None)
    return levels


def test_a_copy_drafts_on_views_of_what_checks_it() -> None:
    caches = Caches()
    (chain,) = ladder("mxfp4", caches)
    assert chain.views is caches
    assert chain.inner is None
    (tree,) = ladder("int2:k=2", caches)
    assert tree.views is caches
    assert isinstance(tree, TreeDrafter)
    first, second, third, lookup = ladder("int8,mxfp4,int2,lookup", caches)
    assert first.views is caches
    assert second.views is first._checked
    assert third.views is second._checked
    assert len({id(caches), id(first._checked), id(second._checked), id(third._checked)}) == 4
    assert isinstance(lookup, LookupDrafter)


def test_with_a_cache_of_its_own_a_copy_has_no_views_and_lends_some() -> None:
    caches = Caches()
    (chain,) = ladder("mxfp4:own-cache", caches)
    assert chain.views is None
    first, second = ladder("mxfp4:own-cache,int2", caches)
    assert first.views is None
    assert second.views is first._checked
    first, second = ladder("mxfp4,int2:own-cache", caches)
    assert first.views is caches
    assert second.views is None


def test_a_copy_below_another_model_has_a_cache_of_its_own() -> None:
    # the keys and values of the other are not the target's
    caches = Caches()
    model, copy, lookup = ladder("stdlib-1m,mxfp4,lookup", caches)
    assert model.views is None
    assert copy.views is None
    assert isinstance(lookup, LookupDrafter)
    copy, model, below = ladder("mxfp4,stdlib-1m,int2", caches)
    assert copy.views is caches
    assert model.views is None
    assert below.views is None
    (model,) = ladder("stdlib-1m:format=mxfp4", caches)
    assert model.views is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_lookup_saves_a_tree_passes_and_costs_it_no_token(temperature: float) -> None:
    prompt, tree = "class Stack:\n    def push(self, item):\n", "int4:k=2:depth=16:nodes=12:shape=best-first:least=0.6"
    alone, sped = (
        foretoken.load("stdlib-7m", draft=draft, pace="fixed")
        .generate(prompt, max_new_tokens=96, temperature=temperature, seed=3, ignore_eos=True)
        .stats
        for draft in (tree, "int4:k=2,lookup")  # the second has the first's options by default
    )
    assert sped.levels[1].accepted_tokens > 0
    assert sped.levels[0].passes < 0.9 * alone.levels[0].passes
    assert sped.mean_acceptance_length > 0.9 * alone.mean_acceptance_length
