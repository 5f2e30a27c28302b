from __future__ import annotations

import dataclasses
import json
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.errors import DraftSpecError, SettingError, quoted
from foretoken.settings.drafts import DraftLevel, parse_draft
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

ABSURD_NUMBERS = [0, -1, True, False, 1.0, 2.5, "8", float("nan")]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_take_the_names_of_their_fields() -> None:
    given = {"draft": "none", "num_speculative_tokens": 3, "dtype": "float32", "device": "cuda:1", "threads": 1}
    assert LoadSettings.of(given) == LoadSettings(**given)  # type: ignore[arg-type]
    assert LoadSettings.of({}) == LoadSettings()
    assert GenerateSettings.of({"max_new_tokens": 1}) == GenerateSettings(max_new_tokens=1)


def test_settings_are_frozen() -> None:
    for chosen in (LoadSettings(), GenerateSettings()):
        for field in dataclasses.fields(chosen):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(chosen, field.name, None)


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings.of({"thread": 2})
    assert str(error.value) == (
        "there is no setting 'thread'; did you mean 'threads'? "
        f"(known: {', '.join(sorted(field.name for field in dataclasses.fields(LoadSettings)))})"
    )


def test_an_unknown_setting_with_nothing_near_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(SettingError) as error:
        GenerateSettings.of({"beam_width": 4})
    known = sorted(field.name for field in dataclasses.fields(GenerateSettings))
    assert str(error.value) == f"there is no setting 'beam_width' (known: {', '.join(known)})"


@pytest.mark.parametrize("value", [*ABSURD_NUMBERS, None])
def test_max_new_tokens_must_be_a_positive_whole_number(value: Any) -> None:
    with pytest.raises(SettingError) as error:
        GenerateSettings.of({"max_new_tokens": value})
    assert str(error.value) == f"max_new_tokens is {value!r}, expected a whole number, 1 or more"


@pytest.mark.parametrize("name", ["num_speculative_tokens", "threads", "prefill_chunk"])
@pytest.mark.parametrize("value", ABSURD_NUMBERS)
def test_numbers_of_loading_must_be_positive_and_whole(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings.of({name: value})
    assert str(error.value) == f"{name} is {value!r}, expected a whole number, 1 or more"


@pytest.mark.parametrize(("cores", "most"), [(2, 16), (1, 16), (64, 64), (None, 16)])
def test_more_threads_than_cores_are_refused_with_the_reason(
    cores: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert LoadSettings(threads=most).threads == most
    with pytest.raises(SettingError) as error:
        LoadSettings(threads=most + 1)
    has = f"{cores or 1} core" + ("s" if (cores or 1) > 1 else "")
    assert str(error.value) == (
        f"threads is {most + 1}, expected at most {most} on this machine: it has {has}, and more threads than cores "
        f"only wait; leave threads out, or give {cores or 1}"
    )


def test_some_numbers_of_loading_may_be_left_open() -> None:
    chosen = LoadSettings.of({"num_speculative_tokens": None, "threads": None})
    assert (chosen.num_speculative_tokens, chosen.threads) == (None, None)
    with pytest.raises(SettingError, match=r"^prefill_chunk is None, expected a whole number, 1 or more$"):
        LoadSettings.of({"prefill_chunk": None})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"dtype": "bfloat"},
            "dtype is 'bfloat'; did you mean 'bfloat16'? (known: auto, bfloat16, float16, float32)",
        ),
        # what PyTorch's users would try
        (
            {"dtype": torch.float32},
            "dtype is torch.float32; did you mean 'float32'? (known: auto, bfloat16, float16, float32)",
        ),
        ({"dtype": None}, "dtype is None (known: auto, bfloat16, float16, float32)"),
        ({"device": "tpu"}, "device is 'tpu', expected cpu, cuda or cuda:NUMBER"),
        ({"device": ""}, "device is '', expected cpu, cuda or cuda:NUMBER"),
    ],
)
def test_a_choice_must_be_a_known_one(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings.of(given)
    assert str(error.value) == message


@pytest.mark.parametrize("value", [None, 0])
def test_a_device_that_is_not_text_is_refused(value: Any) -> None:
    with pytest.raises(SettingError):
        LoadSettings.of({"device": value})


@pytest.mark.parametrize("value", [None, 3, ["lookup"]])
def test_a_draft_that_is_not_text_is_refused(value: Any) -> None:
    with pytest.raises((SettingError, DraftSpecError)):
        LoadSettings.of({"draft": value})


@pytest.mark.parametrize("name", ["ignore_eos", "keep_logits"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(name: str) -> None:
    with pytest.raises(SettingError):
        GenerateSettings.of({name: "no"})


def test_the_rejection_rule_with_exactness_is_refused() -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings(rule="rejection", promise="exact")
    assert str(error.value) == (
        "promise is 'exact', but rule is 'rejection', which keeps the distribution of what is sampled, not its tokens; "
        "use rule 'walk', or promise 'auto'"
    )
    for promise in ("auto", "algorithmic"):
        assert LoadSettings(rule="rejection", promise=promise).promise == promise


def test_what_is_cut_in_a_message_ends_within_its_quotes() -> None:
    assert quoted("x" * 58) == f"'{'x' * 58}'"
    assert quoted("x" * 59) == f"'{'x' * 57}…'"
    assert quoted("it's" * 30, 10) == "\"it'sit'…\""
    assert quoted(10**80, 5) == "1000…"
    with pytest.raises(SettingError) as error:
        GenerateSettings.of({"json_schema": b"{" * 80})
    assert str(error.value) == f"json_schema is b'{'{' * 56}…', expected text"


ARRAYS = [
    np.array([1, 2]),
    np.array([[1.5, 2.5]] * 40),
    np.array(["auto", "x"]),
    np.array([]),
    torch.tensor([3, 4]),
    torch.ones(9, 9),
    [np.array([1, 2])],
]


@pytest.mark.parametrize("value", ARRAYS, ids=range(len(ARRAYS)))
@pytest.mark.parametrize("kind", [GenerateSettings, LoadSettings])
def test_an_array_is_no_setting(kind: type[GenerateSettings] | type[LoadSettings], value: Any) -> None:
    for field in dataclasses.fields(kind):
        with pytest.raises(SettingError) as error:
            kind.of({field.name: value})
        assert str(error.value).startswith(f"{field.name} is ")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300
    for bias in ({5: value}, value):
        with pytest.raises(SettingError, match="logit_bias"):
            GenerateSettings(logit_bias=bias)


def test_what_cannot_even_be_written_is_refused() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(SettingError, match=r"^temperature is Fraction\(10+…, expected"):
        GenerateSettings(temperature=Fraction(10**40 * 10**300))  # type: ignore[arg-type]
    for value in (Odd(), 10**5000):
        for name in ("temperature", "n", "stop", "json_schema"):
            with pytest.raises(SettingError, match=f"{name} is <(Odd|int)>, expected"):
                GenerateSettings.of({name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    given = {
        "max_new_tokens": np.int64(3),
        "temperature": np.float32(0.5),
        "top_p": np.float64(0.25),
        "top_k": np.uint8(4),
        "seed": np.uint64(2**64 - 1),
        "presence_penalty": np.int32(1),
        "logit_bias": {np.int64(5): np.float16(0.5), 6: 1},
    }
    chosen = GenerateSettings.of(given)
    assert chosen == GenerateSettings(
        max_new_tokens=3,
        temperature=0.5,
        top_p=0.25,
        top_k=4,
        seed=2**64 - 1,
        presence_penalty=1,
        logit_bias={5: 0.5, 6: 1},
    )
    assert json.loads(json.dumps(dataclasses.asdict(chosen)))["temperature"] == 0.5  # plain ones, as a record needs
    assert type(LoadSettings(threads=np.int64(1)).threads) is int  # type: ignore[arg-type]
    for name, value in {"n": np.float64(2), "temperature": np.float32("nan"), "cache": np.True_}.items():
        with pytest.raises(SettingError, match=f"{name} is "):
            (LoadSettings if name == "cache" else GenerateSettings).of({name: value})


@pytest.mark.parametrize("value", [3, "", ["main"], b"main", "a\nb\ud800"])
def test_a_revision_is_text(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^revision is .*, expected text: a branch, tag or commit$"):
        LoadSettings(revision=value)


# -- what drafts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "levels"),
    [
        ("none", [("none", {})]),
        ("lookup:min_match=3", [("lookup", {"min_match": "3"})]),
        ("mxfp4:tokens=8,lookup", [("mxfp4", {"tokens": "8"}), ("lookup", {})]),
        (" mxfp4:tokens=8:k=2 , lookup ", [("mxfp4", {"tokens": "8", "k": "2"}), ("lookup", {})]),
        ("fractal:layers=2+4+6", [("fractal", {"layers": "2+4+6"})]),
        ("a/path:where=x=y", [("a/path", {"where": "x=y"})]),
        ("mxfp4:own-cache:inputs=bf16", [("mxfp4", {"own-cache": "", "inputs": "bf16"})]),
        ("int4:group=32:own-cache,lookup", [("int4", {"group": "32", "own-cache": ""}), ("lookup", {})]),
    ],
)
def test_a_draft_is_levels_with_options(spec: str, levels: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_draft(spec) == tuple(DraftLevel(name, options) for name, options in levels)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "draft is '', expected a name, such as 'lookup', or 'none' for plain decoding"),
        (" ", "draft is ' ', expected a name, such as 'lookup', or 'none' for plain decoding"),
        (",", "draft ',' has an empty level; expected names with commas between them"),
        ("lookup,", "draft 'lookup,' has an empty level; expected names with commas between them"),
        ("a,,b", "draft 'a,,b' has an empty level; expected names with commas between them"),
        (":tokens=2", "draft ':tokens=2' has an empty level; expected names with commas between them"),
        ("lookup:", "draft 'lookup:': '' is not an option; expected name=value"),
        ("mxfp4:own-cache:", "draft 'mxfp4:own-cache:': '' is not an option; expected name=value"),
        ("mxfp4:own-cache=", "draft 'mxfp4:own-cache=': 'own-cache=' is not an option; expected name=value"),
        ("a:b:b", "draft 'a:b:b' gives 'b' twice; give it once"),
        ("a:b:b=1", "draft 'a:b:b=1' gives 'b' twice; give it once"),
        ("lookup:tokens=", "draft 'lookup:tokens=': 'tokens=' is not an option; expected name=value"),
        ("none, lookup:=2", "draft 'lookup:=2': '=2' is not an option; expected name=value"),
        ("lookup:tokens=2:tokens=2", "draft 'lookup:tokens=2:tokens=2' gives 'tokens' twice; give it once"),
    ],
)
def test_a_draft_that_cannot_be_read_is_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        parse_draft(spec)
    assert str(error.value) == message


words = st.text("abc019+/._", min_size=1, max_size=4)
values = words | st.just("")  # of an option that is a name alone


@given(st.lists(st.tuples(words, st.dictionaries(words, values, max_size=3)), min_size=1, max_size=3))
@settings(deadline=None, max_examples=50)
def test_a_draft_that_is_written_down_is_read_back(levels: list[tuple[str, dict[str, str]]]) -> None:
    def written(options: dict[str, str]) -> list[str]:
        return [f"{key}={value}" if value else key for key, value in options.items()]

    spec = ",".join(":".join([name, *written(options)]) for name, options in levels)
    assert [(level.name, level.options) for level in parse_draft(spec)] == levels


@given(st.text(",:= \n\tab1", max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_text_is_read_as_a_draft_or_refused_with_the_part_that_is_wrong(spec: str) -> None:
    parts = [part.strip() for part in spec.split(",")]
    try:
        levels = parse_draft(spec)
    except DraftSpecError as error:
        refusal = str(error)
    else:
        assert [level.name for level in levels] == [part.split(":")[0] for part in parts]
        assert all(level.name for level in levels)
        return
    assert any(refusal.startswith(f"draft {wrong!r}") for wrong in [spec, *parts]) or not spec.strip()


def test_a_message_stays_on_its_line_whatever_the_draft_holds() -> None:
    with pytest.raises(DraftSpecError) as error:
        parse_draft("lookup:a\nb=1:a\nb=2")
    assert "\n" not in str(error.value)


def test_options_are_read_as_whole_numbers() -> None:
    level = DraftLevel("lookup", {"min_match": "3", "tokens": "12"})
    assert level.values({"min_match": int, "tokens": int, "k": int}) == {"min_match": 3, "tokens": 12}
    assert DraftLevel("none", {}).values({}) == {}


@pytest.mark.parametrize("value", ["0", "-1", "+1", "1.0", "1e3", "two", "true", " 1", "²", "1_0"])
def test_an_option_must_be_a_positive_whole_number(value: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        DraftLevel("lookup", {"min_match": value}).values({"min_match": int})
    assert str(error.value) == f"draft 'lookup': min_match is {value!r}, expected a whole number, 1 to 9999"


def test_an_option_that_is_there_or_not_takes_no_value() -> None:
    known = {"own-cache": bool, "group": int, "inputs": ("int8", "bf16"), "sharpness": float}
    given = DraftLevel("mxfp4", {"own-cache": "", "group": "32", "inputs": "bf16", "sharpness": "0.5"})
    assert given.values(known) == {"own-cache": True, "group": 32, "inputs": "bf16", "sharpness": 0.5}
    assert DraftLevel("mxfp4", {}).values(known) == {}
    for value in ("yes", "1", "True", "false"):
        with pytest.raises(DraftSpecError) as error:
            DraftLevel("mxfp4", {"own-cache": value}).values(known)
        assert str(error.value) == f"draft 'mxfp4': own-cache takes no value; leave {value!r} out"


@pytest.mark.parametrize("option", ["group", "inputs", "sharpness"])
def test_an_option_that_needs_a_value_is_refused_without_one(option: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        DraftLevel("mxfp4", {option: ""}).values({"group": int, "inputs": ("int8", "bf16"), "sharpness": float})
    assert str(error.value) == f"draft 'mxfp4': '{option}' has no value; expected {option}=..."


def test_an_option_of_words_is_one_of_them() -> None:
    with pytest.raises(DraftSpecError) as error:
        DraftLevel("int4", {"inputs": "fp8"}).values({"inputs": ("int8", "bf16")})
    assert str(error.value) == "draft 'int4': inputs is 'fp8' (known: bf16, int8)"


def test_an_option_of_absurdly_many_digits_is_refused() -> None:
    with pytest.raises(DraftSpecError):
        DraftLevel("lookup", {"min_match": "9" * 5000}).values({"min_match": int})


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DraftSpecError) as error:
        DraftLevel("lookup", {"match": "2"}).values({"min_match": int, "tokens": int})
    assert str(error.value) == (
        "draft 'lookup' has no option 'match'; did you mean 'min_match'? (known: min_match, tokens)"
    )
