"""Training a drafter: it learns, it can be broken off, and what it writes drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api.model import Model
from foretoken.common.source import EMBEDDED
from foretoken.errors import CheckpointError, InputError, SettingError
from foretoken.trained.config import BlockConfig
from foretoken.trained.files import read_trained
from foretoken.training import drafter
from foretoken.training.drafter import DRAFTED, Progress, Recipe, Training
from foretoken.training.kinds import Kind
from foretoken.training.replay import right

FEW = Recipe(6 * 2 * 48, batch=2, length=48, warmup=2, checkpoints=3, prompts=2, new_tokens=12)


@pytest.fixture(scope="module")
def model() -> Model:
    return foretoken.load("stdlib-1m", draft="none", threads=1)


@pytest.fixture(scope="module")
def stream(model: Model) -> torch.Tensor:
    text = "def add(one, other):\n    return one + other\n\n\nclass Sum:\n    total = add(1, 2)\n"
    return torch.tensor(model.tokenizer.encode_part(text * 20))  # type: ignore[union-attr]


def trained(model: Model, stream: torch.Tensor, out: Path, recipe: Recipe = FEW) -> Training:
    return Training(model, stream, stream[-200:], out, recipe)


@pytest.mark.parametrize(
    "kind",
    [Kind(), pytest.param(Kind(inferred=1), marks=pytest.mark.prove), Kind("eagle2")],
    ids=["moa", "tli", "eagle2"],
)
@pytest.mark.parametrize(("patience", "stopped", "step"), [(1000.0, 3, 2), (0.0, 4, 3)], ids=["checkpoint", "saved"])
def test_a_training_that_was_broken_off_ends_with_the_same_weights(
    model: Model,
    stream: torch.Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
    stopped: int,
    step: int,
    kind: Kind,
) -> None:
    monkeypatch.setattr(drafter, "_SAVING", patience)
    recipe = replace(FEW, kind=kind)
    whole = trained(model, stream, tmp_path / "whole", recipe)
    whole.run()

    def stop(progress: Progress) -> None:
        if progress.step == stopped:
            raise KeyboardInterrupt

    broken = trained(model, stream, tmp_path / "broken", recipe)
    with pytest.raises(KeyboardInterrupt):
        broken.run(stop)
    again = trained(model, stream, tmp_path / "broken", recipe)
    assert again.resume()
    assert again.progress.step == step
    again.run()
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name]), name
    assert [point.acceptance for point in again.progress.points] == [p.acceptance for p in whole.progress.points]
    assert len(again.progress.points) == 3


def test_one_process_trains_at_a_time(model: Model, stream: torch.Tensor, tmp_path: Path) -> None:
    one, other = (trained(model, stream, tmp_path / "it") for _ in range(2))

    with one.alone(), pytest.raises(InputError, match="another process is training into"), other.alone():
        pass
    with other.alone():
        assert not other.resume()


def test_other_settings_or_other_text_do_not_go_on(model: Model, stream: torch.Tensor, tmp_path: Path) -> None:
    trained(model, stream, tmp_path / "it").run()
    for other in (
        trained(model, stream, tmp_path / "it", replace(FEW, seed=1)),
        trained(model, stream.flip(0), tmp_path / "it"),
    ):
        with pytest.raises(InputError, match="with other settings or of other text"):
            other.resume()
    assert not trained(model, stream, tmp_path / "new").resume()


@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        (Kind(), "best"),
        pytest.param(Kind(), "paper", marks=pytest.mark.prove),
        (Kind(inferred=1), "paper"),
        (Kind("block", depth=2), "best"),
        (Kind("eagle2"), "paper"),
        pytest.param(Kind("eagle3"), "best", marks=pytest.mark.prove),
        pytest.param(Kind("independent"), "best", marks=pytest.mark.prove),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name} {value.inferred}",
)
def test_it_learns_what_the_model_repeats(
    model: Model, stream: torch.Tensor, tmp_path: Path, kind: Kind, preset: str
) -> None:
    recipe = replace(FEW, tokens=40 * 2 * 48, kind=kind, rate=5e-3, checkpoints=2, preset=preset)
    training = trained(model, stream, tmp_path / "it", recipe)
    losses: list[float] = []
    training.run(lambda progress: losses.append(progress.loss))
    assert losses[-1] < 0.9 * losses[0]
    training.finish()
    assert not training.part.exists()
    best = training.progress.best
    assert best is not None
    its = read_trained(tmp_path / "it")
    kept = [tuple(round(share, 4) for share in point.accepted) for point in training.progress.points]
    assert its.accepted in kept
    assert its.training is not None
    assert its.training["acceptance"] == round(best.acceptance, 4)


@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        pytest.param(Kind(inferred=1), marks=pytest.mark.prove),
        Kind("block", depth=3, inferred=1),
        Kind("eagle2"),
        pytest.param(Kind("eagle3"), marks=pytest.mark.prove),
        pytest.param(Kind("independent"), marks=pytest.mark.prove),
    ],
    ids=str,
)
def test_a_replay_accepts_what_the_engine_accepts(
    model: Model, stream: torch.Tensor, tmp_path: Path, kind: Kind
) -> None:
    recipe = replace(FEW, tokens=40 * 2 * 48, kind=kind, rate=5e-3, checkpoints=1, new_tokens=40)
    training = trained(model, stream, tmp_path / "it", recipe)
    training.run()
    texts, first = training._texts(), training._first
    said = right(training.student, training._teacher, texts, first, DRAFTED)
    drafting = foretoken.load(
        "stdlib-1m", draft=f"{tmp_path / 'it'}:tokens={DRAFTED}:format=bf16", threads=1, pace="fixed"
    )
    same = total = accepted = 0
    for text, counts in zip(texts.tolist(), said, strict=True):
        done = drafting.generate(
            tuple(text[:first]), max_new_tokens=len(text) - first, ignore_eos=True, keep_rounds=True
        )
        assert done.rounds is not None
        root = 0
        for found in (count for each in done.rounds if not each.read for count in each.accepted.values()):
            if root >= len(counts):
                break
            total, same, accepted = total + 1, same + (found == counts[root]), accepted + found
            root += found + 1
    assert accepted > 0, "otherwise it says nothing"
    assert same >= 0.95 * total  # the two round elsewhere


def test_a_block_begins_with_the_weights_of_a_mixture(model: Model, stream: torch.Tensor, tmp_path: Path) -> None:
    trained(model, stream, tmp_path / "moa", replace(FEW, tokens=20 * 2 * 48, rate=5e-3)).run()
    start = str(tmp_path / "moa")
    block = trained(model, stream, tmp_path / "it", replace(FEW, kind=Kind("block", depth=4, start=start)))
    assert isinstance(block.config, BlockConfig)
    assert (block.config.depth, block.config.num_layers) == (4, 4)
    texts, first = block._texts(), block._first
    found = block.student.choices(block._teacher.teach(texts), first, 6)[:, first:, 0]
    of_start = Kind().student(read_trained(tmp_path / "moa").config, block._teacher)
    of_start.network.load_state_dict({n: t.float() for n, t in read_trained(tmp_path / "moa").tensors.items()})
    theirs = of_start.choices(block._teacher.teach(texts), first, 6)[:, first:, 0]
    assert torch.equal(found, theirs), "what it drafts first is what the mixture drafts first"
    block.run()
    again = trained(model, stream, tmp_path / "it", replace(FEW, kind=Kind("block", depth=4, start=start)))
    assert again.resume()
    for wrong, match in (
        ({"start": str(tmp_path / "it")}, "a drafter of another kind, or was packed for clients; a block begins with"),
        ({"start": start, "inferred": 1}, "--tli is 1, and .* ends with 0 layers; leave it out"),
    ):
        with pytest.raises(InputError, match=match):
            trained(model, stream, tmp_path / "new", replace(FEW, kind=Kind("block", **wrong)))  # type: ignore[arg-type]
    for sizes in ({"block": 1}, {"depth": 1}, {"depth": 0}):
        with pytest.raises(SettingError, match="expected 2 or more of each"):
            Kind("block", **sizes)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="holds no trained drafter; name a folder that `foretoken train`"):
        trained(model, stream, tmp_path / "new", replace(FEW, kind=Kind("block", start=str(EMBEDDED["stdlib-1m"]))))
    other = foretoken.load("stdlib-7m", draft="none", threads=1)
    with pytest.raises(CheckpointError, match="was trained for a model whose number of layers is 2"):
        trained(other, stream, tmp_path / "new", replace(FEW, kind=Kind("block", start=start)))


@pytest.mark.parametrize("observer", ["mean", "states"])
def test_a_variant_for_comparison_is_measured_and_not_written(
    model: Model, stream: torch.Tensor, tmp_path: Path, observer: str
) -> None:
    training = trained(model, stream, tmp_path / "it", replace(FEW, kind=Kind(inferred=1, observer=observer)))
    assert training.run().best is not None
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    "wrong", [{"depth": 2}, {"block": 5}, {"name": "eagle3", "depth": 2}, {"name": "independent", "wide": 2.0}]
)
def test_sizes_that_a_kind_does_not_have_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="do not have; leave it out"):
        Kind(**wrong)  # type: ignore[arg-type]


def test_more_layers_than_parameters_allow_are_refused(model: Model) -> None:
    with pytest.raises(SettingError, match="64 layers leave no parameters for feed-forward layers"):
        Kind("eagle2", depth=64).config(model.target.config, "it")


def test_more_layers_than_the_model_has_are_refused(model: Model, stream: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--tli is 2, and the model has 2 layers; give fewer"):
        trained(model, stream, tmp_path / "it", replace(FEW, kind=Kind(inferred=2)))


def test_too_little_text_is_refused(model: Model, stream: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are 48 tokens to train on and 200 held out; expected more than 48"):
        Training(model, stream[:48], stream[-200:], tmp_path / "it", FEW)
