"""The windows of a training, and how far each row sees."""

from __future__ import annotations

import torch

from foretoken.training.windows import SEGMENTS, draw

STREAM = torch.arange(1000)


def test_windows_are_pieces_of_the_stream_and_a_function_of_seed_and_step() -> None:
    one = draw(STREAM, 64, 5, seed=3, step=7)
    again = draw(STREAM, 64, 5, seed=3, step=7)
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.bounds, again.bounds)
    assert torch.equal((one.tokens - one.tokens[:, :1]) % 1000, torch.arange(64).expand(5, 64))
    assert not torch.equal(one.tokens, draw(STREAM, 64, 5, seed=3, step=8).tokens)
    assert not torch.equal(one.tokens, draw(STREAM, 64, 5, seed=4, step=7).tokens)


def test_all_of_the_text_is_read_before_any_of_it_is_read_again() -> None:
    batches = [draw(STREAM, 64, 3, seed=3, step=step).tokens for step in range(10)]
    first, second = torch.cat(batches[:5]).flatten(), torch.cat(batches[5:]).flatten()
    assert len(first.unique()) == len(first) == 15 * 64, "all but the last 40 tokens"
    assert len(second.unique()) == len(second)
    assert not torch.equal(first.sort().values, second.sort().values), "the windows lie elsewhere"
    assert draw(STREAM[:65], 64, 3, seed=0, step=1).tokens.shape == (3, 64)


def test_a_prompts_rows_see_all_before_them_and_a_segments_rows_what_lies_before_the_segment() -> None:
    batch = draw(STREAM, 200, 20, seed=0, step=0)
    lengths = []
    for window in range(20):
        prompt = int((~batch.judged[window]).sum())
        assert 16 <= prompt <= 100
        assert not batch.judged[window, :prompt].any(), "the prompt comes first"
        assert batch.bounds[window, :prompt].tolist() == list(range(-1, prompt - 1))
        at = prompt
        while at < 200:
            bound = int(batch.bounds[window, at])
            assert bound == at - 1, "a segment begins behind its bound"
            stop = at + int((batch.bounds[window, at:] == bound).sum())
            assert (batch.bounds[window, at:stop] == bound).all()
            lengths += [stop - at] if stop < 200 else []
            at = stop
    assert (min(lengths), max(lengths)) == SEGMENTS
    assert batch.distances[batch.judged].min() == 1
    assert batch.distances.max() <= SEGMENTS[1]
