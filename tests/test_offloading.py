"""A model under a bound of memory: what it says, with which draft, and what is refused."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

import foretoken
from foretoken.api.build import plan
from foretoken.api.offloading import SUBSPEC, with_long_chunks
from foretoken.api.on_gpu import CUDA, SHARE
from foretoken.common.source import resolve
from foretoken.decoder.config import read_config
from foretoken.decoder.homes.parts import PARTS
from foretoken.decoder.native_pass import PIECE
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.subspec import SubspecRecipe
from foretoken.errors import SettingError
from foretoken.offload.stream import Streamed
from foretoken.protocol.types import Budget
from foretoken.settings.load import LoadSettings
from tests.tiny import needs_native

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
MODEL, LAYERS = "stdlib-7m", 4


@pytest.fixture(autouse=True)
def _small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of a test do not depend on what else the process has loaded: with CUDA that is more than 2 GiB."""
    monkeypatch.setattr("foretoken.api.offloading.memory_in_use", lambda: 300 << 20)


def generated(**settings: object) -> tuple[tuple[int, ...], str | None, foretoken.Completion]:
    model = foretoken.load(MODEL, **settings)
    done = model.generate(PROMPT, max_new_tokens=24, hash_logits=True, ignore_eos=True)
    return done.tokens, done.logits_sha256, done


@pytest.mark.parametrize("draft", ["none", "lookup", "subspec", "subspec:k=2:depth=5", "int4,lookup"])
@pytest.mark.parametrize("layers", ["all", 2])
def test_what_is_read_in_each_pass_says_the_same_bit_for_bit(draft: str, layers: str | int) -> None:
    plain = generated(draft="none")
    tokens, digest, done = generated(draft=draft, stream_layers=layers, pace="fixed")
    assert (tokens, digest) == plain[:2]
    if draft != "none":
        assert done.stats.accepted_tokens > 0


def test_two_texts_at_once_and_a_long_prompt_are_read_from_disk_too() -> None:
    prompts = [PROMPT * 20, "import os", "def f(x):"]
    models = [foretoken.load(MODEL, draft="none", stream_layers=n) for n in (None, "all")]
    one, other = (m.generate_many(prompts, max_new_tokens=8, hash_logits=True) for m in models)
    assert [done.logits_sha256 for done in one] == [done.logits_sha256 for done in other]


@needs_native
def test_a_long_prompt_is_read_in_one_pass_which_reads_each_layer_once() -> None:
    prompt = list(range(5, 1005))
    plain = foretoken.load(MODEL, draft="none").generate(prompt, max_new_tokens=1, hash_logits=True)
    model = foretoken.load(MODEL, draft="none", stream_layers="all")
    home = model.target.weights.homes[0]
    assert isinstance(home, Streamed)
    traffic = home.stream.traffic
    done = model.generate(prompt, max_new_tokens=1, hash_logits=True)
    assert (done.tokens, done.logits_sha256) == (plain.tokens, plain.logits_sha256)
    assert len(prompt) > 3 * PIECE
    every = sum(extent.size for unit in home.stream.units for extent in unit)
    assert every <= traffic.bytes <= 2 * every  # the buffer has what comes next


def test_prompts_of_several_texts_share_a_pass_of_several_pieces() -> None:
    prompts = [list(range(5, 5 + n)) for n in (150, 333, 90, 200)]
    models = [foretoken.load(MODEL, draft="none", stream_layers=n) for n in (None, 3)]
    one, other = (m.generate_many(prompts, max_new_tokens=4, hash_logits=True, ignore_eos=True) for m in models)
    assert [done.logits_sha256 for done in one] == [done.logits_sha256 for done in other]
    assert sum(map(len, prompts)) > 2 * PIECE


def test_how_much_of_a_prompt_a_pass_reads_is_as_asked_or_as_the_memory_allows() -> None:
    config = read_config(resolve(MODEL))

    def rows(**settings: object) -> int:
        return with_long_chunks(config, LoadSettings.of(settings)).prefill_chunk

    assert rows(stream_layers="all") == config.context_length
    assert rows(stream_layers="all", prefill_chunk=9) == 9
    assert rows(memory="50MB") == 256
    assert 256 < rows(memory="180MB") < rows(memory="200MB") < config.context_length


@needs_native
def test_substitutes_are_of_the_layers_that_are_read_and_share_the_rest() -> None:
    model = foretoken.load(MODEL, draft="subspec", stream_layers=2)
    target, draft = model.target.weights, model.decoders["subspec"].weights
    away = {part // len(PARTS) for part, home in enumerate(target.homes) if home is not None}
    assert len(away) == 2
    for at, (its, own) in enumerate(zip(draft.layers, target.layers, strict=True)):
        shared = [one is other for one, other in zip(its.linears, own.linears, strict=True)]
        assert shared == [at not in away] * 7
    assert draft.head is target.head
    assert not any(draft.homes), "a draft reads nothing from the disk"
    whole = foretoken.load(MODEL, draft="subspec").decoders["subspec"].weights
    assert {linear.format for layer in whole.layers for linear in layer.linears} == {"int4-g64"}


def test_a_bound_chooses_the_draft(caplog: pytest.LogCaptureFixture) -> None:
    roomy, draft = plan("stdlib-7m", memory="2GiB")
    assert roomy.plan.streamed == ()
    assert draft == "lookup", "as without a bound"
    tight, draft = plan("stdlib-7m", memory=roomy.plan.total - (5 << 20))
    assert tight.plan.streamed
    assert tight.plan.total <= roomy.plan.total - (5 << 20)
    assert draft in (*SUBSPEC, "lookup")
    with pytest.raises(SettingError, match="; allow that much, or take a smaller model"):
        plan("stdlib-7m", memory="100MB")
    with caplog.at_level(logging.INFO):
        found, draft = plan("stdlib-7m", memory="2GiB", draft="none", stream_layers=3)
    assert (draft, len(found.plan.streamed)) == ("none", 3)


def test_a_bound_of_a_gpu_s_memory_is_planned_without_the_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.offloading.memory_in_use", lambda: pytest.fail("that is no memory of the GPU"))
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: None)
    roomy, _ = plan("stdlib-7m", device="cuda", memory="2GiB", draft="subspec")
    assert roomy.plan.memory["CUDA and its libraries"] == CUDA
    assert not roomy.plan.streamed
    whole = plan("stdlib-7m", device="cuda", memory="2GiB", draft="lookup", prefill_chunk=64)[0].plan.total
    bound = int(whole / SHARE) - (1 << 20)
    assert plan("stdlib-7m", device="cuda", memory=bound, draft="lookup", prefill_chunk=64)[0].plan.streamed
    monkeypatch.setattr("foretoken.api.on_gpu.memory_left", lambda: 1000)
    with pytest.raises(SettingError, match="for which cuda has no room, would lie in the machine's memory, and"):
        plan("stdlib-7m", device="cuda", memory=bound, draft="lookup", prefill_chunk=64)


def test_the_least_bound_of_a_gpu_s_memory_that_is_named_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: None)
    monkeypatch.setattr("foretoken.offload.plan.size", str)  # every byte of it
    with pytest.raises(SettingError) as error:
        plan("stdlib-7m", device="cuda", memory="100MiB", draft="lookup")
    least = int(str(error.value).split("needs ")[1].split(" at least")[0])
    assert str(error.value).startswith(f"memory is {100 << 20}, and ")
    assert plan("stdlib-7m", device="cuda", memory=least, draft="lookup")[0].plan.streamed
    with pytest.raises(SettingError, match=f"memory is {least - 1}, "):
        plan("stdlib-7m", device="cuda", memory=least - 1, draft="lookup")


def test_what_a_gpu_cannot_do_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: "it is old")
    with pytest.raises(
        SettingError, match=r"draft 'subspec' needs low-bit weights on the GPU \(it is old\); use 'lookup'"
    ):
        plan("stdlib-7m", device="cuda", memory="2GiB", draft="subspec")
    monkeypatch.setattr("foretoken.kernels.gpu.why_not", lambda device: None)
    with pytest.raises(SettingError, match="draft 'subspec' is no smaller on a GPU than one of 4 bits"):
        plan("stdlib-7m", device="cuda", memory="2GiB", draft="subspec:format=int2")


def test_a_bound_is_one_of_the_context_too() -> None:
    model = foretoken.load("stdlib-1m", draft="none", memory="2GiB")
    assert model.context_length == 1024
    assert foretoken.load("stdlib-1m", draft="none", context=40).context_length == 40
    with pytest.raises(SettingError, match="context is 99999, and the model has 2048; leave it out"):
        foretoken.load("stdlib-1m", draft="none", context=99_999)
    short = foretoken.load("stdlib-1m", draft="none", context=40)
    done = short.generate("def f(x):", max_new_tokens=100, ignore_eos=True)
    assert done.finish_reason == "length"
    assert len(done.tokens) + done.prompt_tokens == 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "8 gallons"}, "memory is '8 gallons', expected an amount such as 8GiB or 500MB"),
        ({"memory": "1.2"}, "memory is '1.2', expected an amount such as 8GiB or 500MB"),
        ({"memory": "8"}, "memory is '8', expected an amount such as 8GiB or 500MB"),
        ({"memory": 0}, "memory is 0, expected an amount"),
        ({"memory": -5}, "memory is -5, expected an amount"),
        ({"memory": 1.5}, "memory is 1.5, expected an amount"),
        ({"memory": True}, "memory is True, expected an amount"),
        ({"memory": "8GiB", "disk_bandwidth": "fast"}, "disk_bandwidth is 'fast', expected an amount such as 1.4GB/s"),
        ({"disk_bandwidth": "1GB/s"}, "disk_bandwidth is for layers that are read in each pass; give memory as well"),
        ({"stream_layers": "some"}, "stream_layers is 'some', expected a number, or all"),
        ({"stream_layers": 0}, "stream_layers is 0, expected"),
        ({"context": 0}, "context is 0, expected"),
        ({"memory": "8GiB", "dtype": "float32"}, "dtype is 'float32', which cannot be had under a bound of memory"),
        ({"memory": "8GiB", "weights": "copied"}, "weights is 'copied', which cannot be had"),
        ({"stream_layers": "all", "cache": False}, "cache is False, which cannot be had"),
        ({"memory": "8GiB", "device": "cuda", "disk_bandwidth": "1GB/s"}, "with device 'cuda' layers come from memory"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as error:
        LoadSettings(**settings)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_amounts_are_read_as_people_write_them() -> None:
    amounts = {"8GiB": 8 << 30, "8gb": 8 * 10**9, "1.5 MiB": 3 << 19, "700MB": 700_000_000, "4096": 4096}
    assert {text: LoadSettings(memory=text).memory for text in amounts} == amounts
    assert LoadSettings(memory="1GB", disk_bandwidth="1.4GB/s").disk_bandwidth == 1_400_000_000


def test_more_layers_than_the_model_has_are_refused() -> None:
    with pytest.raises(SettingError, match=f"stream_layers is 99, and the model has {LAYERS} layers"):
        foretoken.load(MODEL, stream_layers=99)


def test_a_file_that_changes_ends_a_generation_with_the_reason(tmp_path: Path) -> None:
    from foretoken.common.source import resolve

    folder = tmp_path / "model"
    folder.mkdir()
    for file in resolve("stdlib-1m").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    model = foretoken.load(folder, draft="none", stream_layers="all")
    stream = model.stream(PROMPT, max_new_tokens=200, ignore_eos=True)
    came = [next(stream) for _ in range(3)]
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(foretoken.CheckpointError, match=r"has changed since it was loaded|was cut short"):
        came.extend(stream)
    assert len(came) >= 3


def test_a_model_that_does_not_fit_is_told_what_to_type(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretoken.api.offloading.memory_left", lambda: 10_000_000)
    foretoken.load(MODEL, draft="none")
    assert "do not fit into the 10.0 MB of memory that are left" in caplog.text
    assert "with --memory 0.0GiB" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    foretoken.load(MODEL, draft="none")
    assert "do not fit" not in caplog.text


@needs_native
def test_substitutes_have_as_many_bits_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for draft in SUBSPEC:
        assert name_levels(LoadSettings(draft=draft))[0].recipe.substitutes
    small = tuple(f"{draft.partition(',')[0]}:k=1:depth=2" for draft in SUBSPEC)  # trees that take little themselves
    monkeypatch.setattr("foretoken.api.build.SUBSPEC", small)
    chosen = []
    for bound in range(328 << 20, 345 << 20, 128 << 10):
        try:
            found, draft = plan(MODEL, memory=bound, context=64, prefill_chunk=8)
        except SettingError:
            continue  # not even the model has room
        if not found.plan.streamed:
            break
        chosen.append(draft)
    assert [draft for draft, _ in itertools.groupby(chosen)] == ["lookup", *reversed(small)]


@needs_native
def test_the_rejection_rule_cannot_judge_trees_so_lookup_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.build.SUBSPEC", (small := "subspec:k=1:depth=2",))
    bound = plan(MODEL, memory="2GiB", context=64)[0].plan.total - (1 << 20)
    for rule, draft in (("walk", small), ("rejection", "lookup")):
        found, chosen = plan(MODEL, memory=bound, context=64, rule=rule)
        assert found.plan.streamed
        assert chosen == draft


@pytest.mark.parametrize(("settings", "times"), [({"memory": "2GiB"}, 1), ({"stream_layers": 1}, 0), ({}, 0)])
def test_only_a_bound_of_memory_changes_how_the_process_frees_it(
    settings: dict[str, object], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []
    monkeypatch.setattr("foretoken.api.build.give_back_freed_memory", lambda: called.append(True))
    foretoken.load("stdlib-1m", draft="none", **settings)
    assert len(called) == times


def test_without_the_native_engine_low_bit_drafts_are_refused_under_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:  # a pass would ask, too
        patched.setattr("foretoken.api.offloading.native", SimpleNamespace(module=lambda: None))
        with pytest.raises(SettingError, match="no bound of memory holds with draft 'subspec': PyTorch makes bf16"):
            foretoken.load(MODEL, draft="subspec,lookup", memory="2GiB")
        with pytest.raises(SettingError, match="no bound of memory holds with draft 'mxfp4'"):
            foretoken.load(MODEL, draft="mxfp4", memory="2GiB")


def test_a_draft_needs_a_load_of_its_own_under_a_bound() -> None:
    from foretoken.api.build import with_draft

    bounded = foretoken.load("stdlib-1m", draft="none", memory="2GiB")
    with pytest.raises(SettingError, match=r"memory is 2\.15 GB, which was planned for draft 'none', and draft"):
        with_draft(bounded, "int8")
    expected = foretoken.load("stdlib-1m", draft="none").generate(PROMPT, max_new_tokens=12).tokens
    for draft in ("none", "lookup"):  # these need no memory
        assert with_draft(bounded, draft).generate(PROMPT, max_new_tokens=12).tokens == expected
    streamed = foretoken.load(MODEL, draft="none", stream_layers=2)
    drafting = with_draft(streamed, "subspec")
    shared = drafting.decoders["subspec"].weights.layers
    assert sum(one is other for one, other in zip(shared, streamed.target.weights.layers, strict=True)) in (0, 2)
    assert drafting.generate(PROMPT, max_new_tokens=12).tokens == streamed.generate(PROMPT, max_new_tokens=12).tokens


def test_substitutes_draft_the_paper_s_tree_and_with_lookup_one_that_goes_as_deep_as_it_is_sure() -> None:
    def level(draft: str) -> tuple[Budget, dict[str, object]]:
        first = name_levels(LoadSettings(draft=draft))[0]
        assert isinstance(first.recipe, SubspecRecipe)
        its = first.recipe.sizes.of(first.options)
        return first.budget, {name: its[name] for name in ("shape", "sharpness", "sampled")}

    beam = {"shape": "beam", "sharpness": 0.2, "sampled": 0.5}
    assert level("subspec") == (Budget(288, 48, 6), beam)
    assert level("subspec:k=2:depth=10") == (Budget(20, 10, 2), beam)
    best = {**beam, "shape": "best-first", "sampled": 0.35}
    assert level("subspec,lookup") == (Budget(288, 160, 4, 0.3), best)
    assert level("subspec:nodes=64:least=0.1,lookup") == (Budget(64, 160, 4, 0.1), best)
    assert level("subspec:sharpness=0.3,lookup")[1] == {**best, "sharpness": 0.3, "sampled": None}
    assert not name_levels(LoadSettings(draft="subspec,lookup"))[0].recipe.paced
