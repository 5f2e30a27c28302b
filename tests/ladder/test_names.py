"""What a draft names, before anything is loaded, and what is refused of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken.common.source import EMBEDDED, EMBEDDED_DRAFTERS
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.recipe import Level
from foretoken.drafters.table import CHAIN, DRAFTERS, TREE
from foretoken.errors import DraftSpecError
from foretoken.formats import FORMATS, format_of
from foretoken.settings.drafts import parse_draft
from foretoken.settings.load import LoadSettings


def levels(spec: str, num_speculative_tokens: int | None = None) -> list[Level]:
    return name_levels(LoadSettings(draft=spec, num_speculative_tokens=num_speculative_tokens))


def named(spec: str) -> Level:
    (level,) = levels(spec)
    return level


def test_two_numbers_of_draft_tokens_contradict_each_other() -> None:
    with pytest.raises(DraftSpecError) as error:
        levels("lookup:tokens=3", 5)
    assert str(error.value) == (
        "draft 'lookup:tokens=3' asks for 3 tokens, num_speculative_tokens for 5; give one of them"
    )


def test_an_option_of_one_letter_is_near_to_no_other() -> None:
    (level,) = parse_draft("subspec:kv=int8")
    with pytest.raises(DraftSpecError, match=r"has no option 'kv' \(known: depth, k\)"):
        level.values({"k": int, "depth": int})


def test_an_unknown_draft_is_refused_with_the_nearest_one() -> None:
    known = f"(known: {', '.join(sorted([*DRAFTERS, *FORMATS, *EMBEDDED, *EMBEDDED_DRAFTERS]))})"
    known += "; a checkpoint is named by its folder or hub id"
    with pytest.raises(DraftSpecError) as error:
        levels("lokup")
    assert str(error.value) == f"there is no draft 'lokup'; did you mean 'lookup'? {known}"
    with pytest.raises(DraftSpecError) as error:  # on any level
        levels("lookup,zzz")
    assert str(error.value) == f"there is no draft 'zzz' {known}"


def test_an_unknown_option_of_a_draft_is_refused_with_those_it_has() -> None:
    with pytest.raises(DraftSpecError) as error:
        levels("lookup:match=3")
    assert str(error.value) == (
        "draft 'lookup' has no option 'match'; did you mean 'min_match'? (known: earlier, from, min_match, tokens)"
    )
    with pytest.raises(DraftSpecError, match=r"^draft 'none' takes no options; leave 'k' out$"):
        levels("none:k=4")
    for spec in ("stdlib-1m:dept=3", "stdlib-1m:k=2:dept=3", "stdlib-1m:tokens=2:dept=3"):
        with pytest.raises(DraftSpecError) as error:  # of chains and of trees, whichever it would be
            levels(spec)
        assert str(error.value) == (
            "draft 'stdlib-1m' has no option 'dept'; did you mean 'depth'? "
            "(known: confidence, depth, format, group, inputs, k, kv, least, nodes, own-cache, own-head, own-layers, "
            "shape, sharpness, tokens)"
        )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lookup,none", "'none' speeds nothing up; leave it out"),
        ("stdlib-1m,none", "'none' speeds nothing up; leave it out"),
        (
            "stdlib-1m:k=2:shape=beam,lookup",
            "'stdlib-1m' drafts a tree, which can be sped up only if its shape is best-first; leave 'lookup' out",
        ),
        ("mxfp4,none", "'none' speeds nothing up; leave it out"),
        (
            "mxfp4:k=2:own-cache,int2",
            "'mxfp4' drafts a tree, which can be sped up only by lookup; leave 'int2' out",
        ),
        (
            "lookup,mxfp4",
            "'lookup' cannot be sped up by 'mxfp4'; only a decoder can be sped up",
        ),
        (
            "stdlib-1m,lookup,stdlib-1m",
            "'lookup' cannot be sped up by 'stdlib-1m'; only a decoder can be sped up",
        ),
    ],
)
def test_what_cannot_be_sped_up_is_refused_before_anything_is_loaded(spec: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        levels(spec)
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
            "is a tree of 159984 nodes, k = 9999 times depth = 16; expected at most 4096",
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
        levels(spec, asked)
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
    (level,) = levels(spec, asked)
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
        ("mxfp4:confidence=1", "draft 'mxfp4': confidence is 1, expected a probability below 1, such as 0.4"),
        ("mxfp4:confidence=0", "draft 'mxfp4': confidence is '0', expected a number above 0, such as 0.2"),
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
        ("int4:inputs=fp16", "draft 'int4': inputs is 'fp16'; did you mean 'bf16'? (known: bf16, fastest, fp32, int8)"),
        ("int4:kv=int4", "draft 'int4': kv is 'int4'; did you mean 'int8'? (known: full, int8)"),
        ("mxfp4:own-cache=yes", "draft 'mxfp4': own-cache takes no value; leave 'yes' out"),
        (
            "mxfp4:own_cache",
            "draft 'mxfp4' has no option 'own_cache'; did you mean 'own-cache'? (known: confidence, depth, group, ",
        ),
        ("mxfp4:format=int4", "draft 'mxfp4' has no option 'format'"),
        ("mxfp4:k=2:tokens=9", "draft 'mxfp4': 'tokens' is an option of a chain, and 'k' makes it a tree; a tree has"),
        ("lookup:own-cache", "draft 'lookup' has no option 'own-cache' (known: earlier, from, min_match, tokens)"),
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
        levels(spec)
    assert str(error.value).startswith(message)


def test_the_rejection_rule_refuses_trees_whose_form_is_sampled() -> None:
    with pytest.raises(DraftSpecError, match="use shape=full, or rule 'walk'"):
        name_levels(LoadSettings(draft="stdlib-1m:k=2", rule="rejection"))
    assert name_levels(LoadSettings(draft="stdlib-1m:k=2:shape=full", rule="rejection"))


def called(draft: str) -> list[str]:
    return [level.called for level in levels(draft)]


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
