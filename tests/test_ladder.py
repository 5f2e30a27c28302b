"""From what a user calls a draft to a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import foretoken
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.drafters import CHAIN, DRAFTERS, TREE
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.drafters.tree import TreeDrafter
from foretoken.errors import DraftSpecError
from foretoken.formats import FORMATS, format_of
from foretoken.ladder import Level, make_ladder, name_levels
from foretoken.sampling.samplers import Samplers
from foretoken.settings import LoadSettings
from foretoken.types import Drafter, Request, Turn
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
    drafter = make_ladder(levels, no_target, Samplers(None), rule="walk", load=never, tokenizer=None, caches=None)
    return drafter, levels[0].tokens


def test_a_draft_becomes_the_drafter_that_it_names() -> None:
    assert isinstance(drafter_of("none")[0], NothingDrafter)
    assert isinstance(drafter_of("lookup")[0], LookupDrafter)
    assert isinstance(drafter_of(LoadSettings().draft)[0], LookupDrafter)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_in_the_table_can_be_made_and_is_called_what_the_table_says(name: str) -> None:
    drafter, tokens = drafter_of(name)
    assert drafter.name == name
    assert tokens == DRAFTERS[name].num_speculative_tokens


def test_how_many_tokens_are_drafted_is_said_by_the_draft_or_the_setting_or_the_table() -> None:
    assert drafter_of("lookup:tokens=3")[1] == 3
    assert drafter_of("lookup", 5)[1] == 5
    assert drafter_of("lookup:tokens=5", 5)[1] == 5  # the same number twice is no contradiction
    assert drafter_of("lookup")[1] == 8


def test_two_numbers_of_draft_tokens_contradict_each_other() -> None:
    with pytest.raises(DraftSpecError) as error:
        drafter_of("lookup:tokens=3", 5)
    assert str(error.value) == (
        "draft 'lookup:tokens=3' asks for 3 tokens, num_speculative_tokens for 5; give one of them"
    )


def test_an_unknown_draft_is_refused_with_the_nearest_one() -> None:
    known = "(known: int2, int3, int4, int8, lookup, mxfp4, none, stdlib-1m, stdlib-7m)"
    known += "; a checkpoint is named by its folder or hub id"
    with pytest.raises(DraftSpecError) as error:
        drafter_of("lokup")
    assert str(error.value) == f"there is no draft 'lokup'; did you mean 'lookup'? {known}"
    with pytest.raises(DraftSpecError) as error:  # on any level
        drafter_of("lookup,zzz")
    assert str(error.value) == f"there is no draft 'zzz' {known}"


def test_an_unknown_option_of_a_draft_is_refused_with_those_it_has() -> None:
    with pytest.raises(DraftSpecError) as error:
        drafter_of("lookup:match=3")
    assert str(error.value) == (
        "draft 'lookup' has no option 'match'; did you mean 'min_match'? (known: min_match, tokens)"
    )
    with pytest.raises(DraftSpecError, match=r"^draft 'none' takes no options; leave 'k' out$"):
        drafter_of("none:k=4")
    for spec in ("stdlib-1m:dept=3", "stdlib-1m:k=2:dept=3", "stdlib-1m:tokens=2:dept=3"):
        with pytest.raises(DraftSpecError) as error:  # of chains and of trees, whichever it would be
            drafter_of(spec)
        assert str(error.value) == (
            "draft 'stdlib-1m' has no option 'dept'; did you mean 'depth'? "
            "(known: depth, format, group, inputs, k, nodes, own-cache, shape, sharpness, tokens)"
        )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lookup,none", "'none' speeds nothing up; leave it out"),
        ("stdlib-1m,none", "'none' speeds nothing up; leave it out"),
        (
            "stdlib-1m:k=2,lookup",
            "'k' makes 'stdlib-1m' draft a tree, and trees cannot be sped up; leave 'k' out, or 'lookup'",
        ),
        ("mxfp4,none", "'none' speeds nothing up; leave it out"),
        (
            "mxfp4:k=2:own-cache,lookup",
            "'k' makes 'mxfp4' draft a tree, and trees cannot be sped up; leave 'k' out, or 'lookup'",
        ),
        (
            "lookup,mxfp4",
            "'lookup' cannot be sped up by 'mxfp4'; only a decoder that drafts a chain can be sped up",
        ),
        (
            "stdlib-1m,lookup,stdlib-1m",
            "'lookup' cannot be sped up by 'stdlib-1m'; only a decoder that drafts a chain can be sped up",
        ),
    ],
)
def test_what_cannot_be_sped_up_is_refused_before_anything_is_loaded(spec: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        name_levels(LoadSettings(draft=spec))
    assert str(error.value) == f"draft {spec!r}: {message}"


@pytest.mark.parametrize(
    ("spec", "asked", "message"),
    [
        ("lookup:tokens=4097", None, "asks for 4097 tokens a round, expected at most 4096"),
        ("stdlib-1m:nodes=4097:shape=full", None, "is a tree of 4097 nodes; expected at most 4096"),
        ("stdlib-1m:k=64:depth=65", None, "is a tree of 4160 nodes, k = 64 times depth = 65; expected at most 4096"),
        (
            "stdlib-1m:k=9999:nodes=4:shape=best-first",
            None,
            "is a tree of 59994 nodes, k = 9999 times depth = 6; expected at most 4096",
        ),
        (
            "stdlib-1m:k=2:depth=3:nodes=7",
            None,
            "is to send 7 nodes, but a beam has 6, k = 2 times depth = 3; give fewer nodes, or another shape",
        ),
        (
            "stdlib-1m:k=2:depth=3",
            7,
            "is to send 7 nodes, but a beam has 6, k = 2 times depth = 3; give fewer nodes, or another shape",
        ),
        ("stdlib-1m:k=4:depth=6:nodes=8", 5, "asks for 8 nodes, num_speculative_tokens for 5; give one of them"),
    ],
)
def test_more_than_a_round_may_have_or_a_tree_can_send_is_refused(spec: str, asked: int | None, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        name_levels(LoadSettings(draft=spec, num_speculative_tokens=asked))
    assert str(error.value) == f"draft {spec!r} {message}"


@pytest.mark.parametrize(
    ("spec", "asked", "tokens"),
    [
        ("stdlib-1m:k=64:depth=64", None, 4096),
        ("stdlib-1m:k=4:depth=6:nodes=8", 8, 8),  # the same number twice is no contradiction
        ("stdlib-1m:k=4:depth=6", 8, 8),
        ("stdlib-1m:k=2:depth=3:nodes=12:shape=rerank", None, 12),
    ],
)
def test_a_tree_sends_as_many_nodes_as_it_is_told(spec: str, asked: int | None, tokens: int) -> None:
    (level,) = name_levels(LoadSettings(draft=spec, num_speculative_tokens=asked))
    assert level.tokens == tokens


def test_a_checkpoint_drafts_a_chain_or_with_an_option_of_trees_a_tree() -> None:
    def drafts(spec: str) -> tuple[Any, int]:
        level = named(spec)
        return level.entry, level.tokens

    assert drafts("stdlib-1m") == (CHAIN, CHAIN.num_speculative_tokens)
    assert drafts("stdlib-1m:tokens=9") == (CHAIN, 9)
    assert drafts("somebody/something:k=3:depth=5") == (TREE, 15)
    assert drafts("./folder:nodes=7") == (TREE, 7)
    with pytest.raises(DraftSpecError, match=r"^draft 'stdlib-1m': 'tokens' is an option of a chain, and 'k'"):
        named("stdlib-1m:k=2:tokens=9")


def named(spec: str) -> Level:
    (level,) = name_levels(LoadSettings(draft=spec))
    return level


def test_a_low_bit_format_is_a_copy_of_the_target_in_it() -> None:
    for format in FORMATS.values():
        level = named(format.name)
        assert (level.entry, level.tokens) == (CHAIN, CHAIN.num_speculative_tokens)
        assert level.format == format
        assert level.is_copy
        assert level.has_decoder
        assert level.called == format.name
    assert named("int4:group=128").format == named("int4-g128").format == format_of("int4-g128")
    assert named("int4-g64").is_copy
    assert named("int4-g64").called == "int4-g64"
    assert not named("./int4-g64").is_copy
    assert named("int2:group=32:inputs=bf16:own-cache").options == {"group": 32, "inputs": "bf16", "own-cache": True}
    assert named("mxfp4:group=32").format == FORMATS["mxfp4"]  # which it has anyhow
    assert (named("mxfp4:k=3:depth=5").entry, named("mxfp4:k=3:depth=5").tokens) == (TREE, 15)
    assert named("mxfp4:tokens=7").tokens == 7
    assert not named("lookup").is_copy


def test_a_checkpoint_may_be_in_a_low_bit_format_too_and_is_no_copy() -> None:
    level = named("stdlib-1m:format=int4:group=32:inputs=bf16:tokens=3")
    assert level.format == format_of("int4-g32")
    assert (level.is_copy, level.has_decoder, level.tokens) == (False, True, 3)
    assert named("stdlib-1m").format is None
    assert named("./mxfp4").format is None  # a folder
    assert not named("owner/mxfp4").is_copy


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("stdlib-1m:shape=round", "draft 'stdlib-1m': shape is 'round' (known: beam, best-first, full, rerank)"),
        ("stdlib-1m:sharpness=0", "draft 'stdlib-1m': sharpness is '0', expected a number above 0, such as 0.2"),
        ("stdlib-1m:sharpness=-1", "draft 'stdlib-1m': sharpness is '-1', expected a number above 0, such as 0.2"),
        ("stdlib-1m:k=0", "draft 'stdlib-1m': k is '0', expected a whole number, 1 to 9999"),
        ("mxfp4:group=64", "draft 'mxfp4': mxfp4 got groups of 64; expected 32, which is all that mxfp4 has"),
        ("int8:group=32", "draft 'int8': int8 has one scale an output, and no groups; leave group out"),
        ("int8-g64", "draft 'int8-g64': int8 has one scale an output, and no groups; leave group out"),
        ("int4-g48", "draft 'int4-g48': int4 got groups of 48; expected 32 or 64 or 128"),
        ("int4-g64:group=32", "draft 'int4-g64': the format 'int4-g64' says another group than 32; say one of them"),
        ("int4:group=48", "draft 'int4': int4 got groups of 48; expected 32 or 64 or 128"),
        ("int4:group=0", "draft 'int4': group is '0', expected a whole number, 1 to 9999"),
        ("int4:group", "draft 'int4': 'group' has no value; expected group=..."),
        ("int4:inputs=fp32", "draft 'int4': inputs is 'fp32' (known: bf16, int8)"),
        ("mxfp4:own-cache=yes", "draft 'mxfp4': own-cache takes no value; leave 'yes' out"),
        (
            "mxfp4:own_cache",
            "draft 'mxfp4' has no option 'own_cache'; did you mean 'own-cache'? (known: depth, group, ",
        ),
        ("mxfp4:format=int4", "draft 'mxfp4' has no option 'format'"),
        ("mxfp4:k=2:tokens=9", "draft 'mxfp4': 'tokens' is an option of a chain, and 'k' makes it a tree; a tree has"),
        ("lookup:own-cache", "draft 'lookup' has no option 'own-cache' (known: min_match, tokens)"),
        ("none:own-cache", "draft 'none' takes no options; leave 'own-cache' out"),
        ("stdlib-1m:group=32", "draft 'stdlib-1m': 'group' belongs to a low-bit format; add format=int4, or leave 'gr"),
        ("stdlib-1m:format=int5", "draft 'stdlib-1m': format is 'int5'; did you mean 'int"),
        ("stdlib-1m:format=int4:group=33", "draft 'stdlib-1m': int4 got groups of 33; expected 32 or 64 or 128"),
        ("mxpf4", "there is no draft 'mxpf4'; did you mean 'mxfp4'?"),
        ("int5-g64", "there is no draft 'int5-g64'; did you mean 'int"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        name_levels(LoadSettings(draft=spec))
    assert str(error.value).startswith(message)


def test_the_rejection_rule_refuses_trees_whose_form_is_sampled() -> None:
    with pytest.raises(DraftSpecError, match="use shape=full, or rule 'walk'"):
        name_levels(LoadSettings(draft="stdlib-1m:k=2", rule="rejection"))
    assert name_levels(LoadSettings(draft="stdlib-1m:k=2:shape=full", rule="rejection"))


def test_a_draft_with_another_tokenizer_is_refused_with_the_first_difference() -> None:
    one, other = Spoken({0: "a", 1: "b", 2: "c"}), Spoken({0: "a", 1: "x"})
    (level,) = name_levels(LoadSettings(draft="somebody/something"))

    def make(theirs: Any, ours: Any) -> Drafter:
        return make_ladder(
            [level],
            tiny_decoder(),
            Samplers(None),
            rule="walk",
            load=lambda level: (tiny_decoder(), theirs),
            tokenizer=ours,
            caches=None,
        )

    with pytest.raises(DraftSpecError) as error:
        make(other, one)
    assert str(error.value) == (
        "draft 'somebody/something' has another tokenizer: token 1 is 'x' there and 'b' in the model; use a draft of "
        "the model's own family"
    )
    with pytest.raises(DraftSpecError, match=r"token 2 is None there and 'c' in the model"):
        make(Spoken({0: "a", 1: "b"}), one)
    with pytest.raises(DraftSpecError, match=r"draft 'somebody/something' has no tokenizer"):
        make(None, one)
    with pytest.raises(DraftSpecError, match=r"the model has no tokenizer"):
        make(one, None)
    assert make(one, one).name == make(None, None).name == "something"


@pytest.mark.parametrize(
    "spec",
    ["stdlib-1m", "stdlib-1m,lookup", "stdlib-1m:tokens=4,stdlib-1m,lookup:tokens=3", "stdlib-1m:k=3:depth=4"],
)
def test_ladders_of_embedded_models_say_what_plain_decoding_says(spec: str) -> None:
    prompt = "def read(self, size=-1):\n    "
    plain = foretoken.load("stdlib-7m", draft="none").generate(prompt, max_new_tokens=40)
    done = foretoken.load("stdlib-7m", draft=spec).generate(prompt, max_new_tokens=40)
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


def called(draft: str) -> list[str]:
    return [level.called for level in name_levels(LoadSettings(draft=draft))]


def test_levels_are_called_by_the_last_part_of_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert called("lookup") == ["lookup"]
    assert called("stdlib-7m,stdlib-1m:tokens=2,lookup") == ["stdlib-7m", "stdlib-1m", "lookup"]
    assert called("owner/some-model,lookup") == ["some-model", "lookup"]
    folder = tmp_path / "small"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert called(".") == ["small"]


def test_no_two_levels_are_called_the_same_and_none_as_the_target() -> None:
    assert called("a/model,b/model,lookup") == ["model", "model-2", "lookup"]
    assert called("a/target") == ["target-1"]
    assert called("a/lookup,lookup") == ["lookup-1", "lookup"]
    assert called("mxfp4,int2,mxfp4,lookup") == ["mxfp4", "int2", "mxfp4-3", "lookup"]
    assert called("a/mxfp4,mxfp4") == ["mxfp4", "mxfp4-2"]


# -- whose keys and values a copy drafts on ---------------------------------------------------------------------------


def ladder(spec: str, caches: Caches | None) -> list[Any]:
    """The drafters of a ladder, nearest to the target first."""
    target = tiny_decoder()
    drafter: Any = make_ladder(
        name_levels(LoadSettings(draft=spec)),
        target,
        Samplers(None),
        rule="walk",
        load=lambda level: (target, None),
        tokenizer=None,
        caches=caches,
    )
    levels = []
    while drafter is not None:
        levels.append(drafter)
        drafter = getattr(drafter, "inner", None)
    return levels


def test_a_copy_drafts_on_views_of_what_checks_it() -> None:
    caches = Caches()
    (chain,) = ladder("mxfp4", caches)
    assert chain.views is caches
    assert chain.opened is None  # nobody below needs it
    (tree,) = ladder("int2:k=2", caches)
    assert tree.views is caches
    assert isinstance(tree, TreeDrafter)
    first, second, third, lookup = ladder("int8,mxfp4,int2,lookup", caches)
    assert first.views is caches
    assert second.views is first.opened is not None
    assert third.views is second.opened is not None
    assert len({id(caches), id(first.opened), id(second.opened), id(third.opened)}) == 4
    assert isinstance(lookup, LookupDrafter)


def test_with_a_cache_of_its_own_a_copy_has_no_views_and_lends_some() -> None:
    caches = Caches()
    (chain,) = ladder("mxfp4:own-cache", caches)
    assert chain.views is None
    first, second = ladder("mxfp4:own-cache,int2", caches)
    assert first.views is None
    assert second.views is first.opened is not None
    first, second = ladder("mxfp4,int2:own-cache", caches)
    assert first.views is caches
    assert second.views is None


def test_a_copy_below_another_model_has_a_cache_of_its_own() -> None:
    # the keys and values of the other are not the target's
    caches = Caches()
    model, copy, lookup = ladder("stdlib-1m,mxfp4,lookup", caches)
    assert model.views is None
    assert model.opened is None
    assert copy.views is None
    assert isinstance(lookup, LookupDrafter)
    copy, model, below = ladder("mxfp4,stdlib-1m,int2", caches)
    assert copy.views is caches
    assert model.views is None
    assert below.views is None
    (model,) = ladder("stdlib-1m:format=mxfp4", caches)
    assert model.views is None
