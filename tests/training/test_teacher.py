"""What a teacher says is what the target computes; on a GPU its layers are modules, which compute the same."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.rows import chain
from foretoken.training.teacher import BatchedTeacher, EngineTeacher, Wanted
from tests.tiny import tiny_decoder

WANTED = Wanted(observed=(0, 2), taps=(1, 2, 3), cached=(1, 2))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_both_teachers_say_what_the_target_computes(family: str) -> None:
    target = tiny_decoder(arithmetic="pytorch", model_type=family)
    tokens = torch.randint(90, (2, 11), generator=torch.Generator().manual_seed(1))
    lessons = [
        EngineTeacher(target, target.weights, WANTED).teach(tokens),
        BatchedTeacher(target.config, target.weights, WANTED, torch.device("cpu")).teach(tokens),
    ]
    for window in range(2):
        cache = target.new_cache()
        rows = chain(cache, tokens[window].tolist())
        hidden = target.embed(rows)
        truth = {"embedded": hidden}
        for layer in range(3):
            hidden = target.layers(hidden, rows, layer, layer + 1)
            truth[f"taps.{layer + 1}"] = hidden
        truth["normed"] = target.norm(hidden)
        for layer in WANTED.cached:
            for name, each in zip(("keys", "values"), cache.read(layer), strict=True):
                truth[f"{name}.{layer}"] = each.float().transpose(0, 1)
        pairs = [torch.cat(cache.read(layer), dim=-1).flatten(1).float() for layer in WANTED.observed]
        truth["observed"] = torch.stack(pairs, dim=1)
        for lesson, most in zip(lessons, (0.0, 0.03), strict=True):  # modules round to bf16 elsewhere
            said = {
                "embedded": lesson.embedded,
                "normed": lesson.normed,
                "observed": lesson.observed,
                **{f"taps.{layer}": each for layer, each in lesson.taps.items()},
                **{f"keys.{at}": pair[0] for at, pair in lesson.cached.items()},
                **{f"values.{at}": pair[1] for at, pair in lesson.cached.items()},
            }
            assert said.keys() == truth.keys()
            for name, each in truth.items():
                apart = float((said[name][window].float() - each).abs().max())
                assert apart <= most * max(1.0, float(each.abs().max())), name
