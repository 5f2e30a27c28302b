"""Layers that come from the machine's memory, as they come to a GPU: here both are the CPU's, and PyTorch computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.on_device import bytes_copied, load_to_device
from foretoken.errors import SettingError
from foretoken.formats import FORMATS
from foretoken.offload.host import Copied
from tests.decoder.low_bit import SHAPES, outcomes
from tests.decoder.test_streaming import room, stored, write
from tests.tiny import one_thread

__all__ = ["one_thread"]

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", ["untied", "tied", "odd widths", "all biases"])
@pytest.mark.parametrize("streamed", [tuple(range(12)), (0, 6, 8), ()], ids=str)
def test_passes_have_the_bits_of_the_model_in_memory(tmp_path: Path, shape: str, streamed: tuple[int, ...]) -> None:
    write(tmp_path, **SHAPES[shape])
    config, its = read_config(tmp_path), stored(tmp_path)
    plain = Decoder(config, load_weights(tmp_path, config), threads=1, arithmetic="pytorch")
    weights = load_to_device(its, streamed, room(its), CPU, verify=bool(streamed))
    decoder = Decoder(config, weights, threads=1, arithmetic="pytorch")
    assert decoder.home == ("copied and streamed" if streamed else "copied")
    assert outcomes(decoder, (40, 1)) == outcomes(plain, (40, 1))
    if streamed:
        home = weights.homes[streamed[0]]
        assert isinstance(home, Copied)
        each_pass = sum(bytes_copied(its, part) for part in streamed)
        assert home.stream.traffic.bytes >= 41 * each_pass, "each pass has copied them"


def test_a_copy_is_cast_from_layers_as_they_come_in(tmp_path: Path) -> None:
    write(tmp_path)
    config, its = read_config(tmp_path), stored(tmp_path)
    both = load_weights(tmp_path, config), load_to_device(its, range(4, 12), room(its), CPU)
    one, other = (
        Decoder(config, quantised(weights, config, FORMATS["int4"], own=(0,)), threads=1, arithmetic="pytorch")
        for weights in both
    )
    assert outcomes(one, (3,)) == outcomes(other, (3,))


def test_a_buffer_that_is_too_small_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(SettingError, match="a buffer of 64 bytes has no room for a part of a layer"):
        load_to_device(stored(tmp_path), (1,), 64, CPU)
