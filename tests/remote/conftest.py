"""Trained drafters with random weights, where the model is and as clients have them, and a host that knows some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foretoken.api.hosting import host as hosted
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.config import read_config
from foretoken.drafters.packing import pack
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from foretoken.trained.config import TrainedConfig
from foretoken.trained.files import write_trained
from foretoken.trained.network import Block, Mixture, Stack
from foretoken.trained.sizes import block_of, eagle2_for, eagle3_for, independent_for, mixture_for
from tests.remote.served import MODEL, plain


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drafters of all kinds with random weights for the small embedded model, where the model is."""
    folder, place = tmp_path_factory.mktemp("drafters"), EMBEDDED[MODEL]
    config = read_config(place)
    its = fingerprint(place, config)
    made: dict[str, TrainedConfig] = {
        "moa": mixture_for(config, its),
        "moa-1": mixture_for(config, its, inferred=1),
        "block": block_of(mixture_for(config, its)),
        "eagle2": eagle2_for(config, its),
        "eagle3": eagle3_for(config, its),
        "independent": independent_for(config, its),
    }
    for name, sizes in made.items():
        torch.manual_seed(0)
        kind = Mixture if name.startswith("moa") else Block if name == "block" else Stack
        network = kind(sizes, config.norm_eps)  # type: ignore[arg-type]  # each has sizes of its own kind
        write_trained(folder / name, sizes, network.state_dict())
    return {name: folder / name for name in made}


@pytest.fixture(scope="module")
def clients(drafters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same, as they are packed for clients."""
    folder = tmp_path_factory.mktemp("clients")
    for name, place in drafters.items():
        assert pack(EMBEDDED[MODEL], place, folder / name) > 0
    return {name: str(folder / name) for name in drafters}


@pytest.fixture(scope="module")
def host(drafters: dict[str, Path]) -> Iterator[Host]:
    its = hosted(
        plain(), Listening(port=0), Limits(), [str(drafters[name]) for name in ("moa", "moa-1", "block", "eagle2")]
    )
    yield its
    its.close()
