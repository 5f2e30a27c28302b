"""A pass runs on its decoder's threads, and how many the process has changes no bit."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.native_pass import NativePass
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError
from foretoken.kernels import rowwise
from tests.decoder.models import random_tokens
from tests.decoder.outcomes import Make, compare_chunks, read_committed
from tests.tiny import needs_native, tiny_decoder

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("odd-widths", torch.float32), ("window", torch.float16), ("wide", torch.float32), ("wide", torch.bfloat16)],
    ids=str,
)
def test_chunk_size_does_not_matter_on_two_threads(make: Make, shape: str, dtype: torch.dtype) -> None:
    # few passes: where the second thread must wait for a processor, each product takes milliseconds
    decoder = make(shape, dtype, threads=2, num_hidden_layers=1)
    compare_chunks(decoder, random_tokens(18, seed=1, vocab=97), (7, 17))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "dtype"), [("odd-widths", torch.float32), ("wide", torch.float32), ("wide", torch.bfloat16)], ids=str
)
def test_the_number_of_threads_of_the_process_does_not_matter(
    make: Make, shape: str, dtype: torch.dtype, threads: int
) -> None:
    tokens = random_tokens(19, seed=14, vocab=97)
    before = torch.get_num_threads()
    outcomes = []
    try:
        for of_process in (1, 2):
            torch.set_num_threads(of_process)
            decoder = make(shape, dtype, threads, num_hidden_layers=1)
            outcomes.append(read_committed(decoder, tokens, [17, 1]))
            assert torch.get_num_threads() == of_process  # as it was found
    finally:
        torch.set_num_threads(before)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_every_product_of_pytorch_runs_on_the_decoder_s_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # the bits of most products are the same on two threads as on one, so that the test above would not notice
    seen: list[int] = []
    linear, attention = rowwise.linear, rowwise.attention

    def watched_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return linear(x, weight, bias)

    def watched_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return attention(query, keys, values)

    monkeypatch.setattr(rowwise, "linear", watched_linear)
    monkeypatch.setattr(rowwise, "attention", watched_attention)
    decoder = tiny_decoder(threads=threads, arithmetic="pytorch", num_hidden_layers=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - threads)
        decoder.head(decoder.forward(chain(decoder.new_cache(), [1, 2])))
    finally:
        torch.set_num_threads(before)
    assert seen == [threads] * (7 + 2 + 1)  # 7 layers' products, 2 rows' attention, the head


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_native_decoder_has_as_many_threads_as_it_was_given(threads: int) -> None:
    native_pass = tiny_decoder(threads=threads)._pass
    assert isinstance(native_pass, NativePass)
    native_pass.slow_down(threads - 1, 0)
    with pytest.raises(IndexError):  # there is no such thread
        native_pass.slow_down(threads, 0)


def test_the_number_of_threads_is_restored_after_an_error(make: Make, arithmetic: str) -> None:
    decoder = make("plain", threads=2)
    rows = Rows([(decoder.new_cache(range(1)), [1], [-1])])  # a cache that lacks layer 1
    before = torch.get_num_threads()
    messages = {
        "pytorch": "layer 1 is not in this view, which covers range(0, 1)",
        "auto": "layers 0 to 2 were asked of a view that covers range(0, 1)",
    }
    with pytest.raises(ContractError) as error:
        decoder.forward(rows)
    assert str(error.value) == messages[arithmetic]
    assert torch.get_num_threads() == before == 1


def test_a_decoder_keeps_the_number_of_threads_that_it_was_made_under() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        decoder = tiny_decoder()
    finally:
        torch.set_num_threads(before)
    assert decoder.threads == 2
    assert tiny_decoder(threads=3).threads == 3
