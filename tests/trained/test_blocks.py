"""What each row of a drafter that drafts in one pass may see, and that its decoder computes what its network does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foretoken.decoder.linear import Linear
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import CheckpointError
from foretoken.formats import FORMATS
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import config_of
from foretoken.trained.files import Trained, expected_shapes, parameters_of
from foretoken.trained.network import Block, masks_of, places_of
from foretoken.trained.observer import observations
from foretoken.trained.sizes import block_of, mixture_for
from foretoken.training.windows import draw
from tests.mixtures import block_and_observer, random_block
from tests.tiny import ARITHMETICS, tiny_config, tiny_decoder
from tests.trained.test_network import TEXT, read

# a prompt of two tokens; then a token that is known and two blanks, and two tokens that are known and a blank
BOUNDS = torch.tensor([[-1, 0, 1, 1, 1, 4, 4, 4]])
ROOTS = torch.tensor([[0, 1, 2, 2, 2, 5, 6, 6]])


def test_the_masks_are_those_of_known_tokens_and_blanks() -> None:
    # T: the keys of a token's embedding, in the first layer, and those of the observer, in the second; o: of own states
    drawn = """
        T....... ........   ........ o.......
        TT...... ........   T....... .o......
        TTT..... ........   TT...... ..o.....
        TTT..... ...o....   TT...... ..oo....
        TTT..... ...oo...   TT...... ..ooo...
        TTTTTT.. ........   TTTTT... .....o..
        TTTTTTT. ........   TTTTT... .....oo.
        TTTTTTT. .......o   TTTTT... .....ooo
    """
    _, of_tokens = masks_of(ROOTS)
    _, of_vectors = masks_of(BOUNDS)
    for row, line in enumerate(drawn.strip().splitlines()):
        marks = [mark != "." for mark in line.replace(" ", "")]
        assert [*of_tokens[0, 0, row].tolist(), *of_vectors[0, 0, row].tolist()] == marks, row
    assert places_of(ROOTS)[0].tolist() == [0, 0, 0, 1, 2, 0, 0, 1]


def test_a_blank_depends_on_what_it_may_see_and_on_nothing_else() -> None:
    target = tiny_decoder()
    network, _ = random_block(target, scale=0.2)
    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(8)))
    embedded, observed = torch.randn(1, 8, 32), torch.randn(1, 8, 3, 32)
    before = network(embedded, observed, tables, BOUNDS, ROOTS)

    def rows_changed(what: torch.Tensor, at: int) -> list[int]:
        changed = what.clone()
        changed[:, at] += 1
        now = network(
            changed if what is embedded else embedded, changed if what is observed else observed, tables, BOUNDS, ROOTS
        )
        return [row for row in range(8) if not torch.equal(now[0, row], before[0, row])]

    assert [rows_changed(embedded, at) for at in range(8)] == [
        list(range(8)),
        list(range(1, 8)),
        list(range(2, 8)),
        [5, 6, 7],  # a blank's own token is not known to it, nor to those behind it, until the next draft
        [5, 6, 7],
        [5, 6, 7],
        [6, 7],
        [],
    ]
    assert rows_changed(observed, 1) == [2, 3, 4, 5, 6, 7]
    assert rows_changed(observed, 4) == [5, 6, 7]
    assert rows_changed(observed, 5) == []


def test_windows_are_cut_into_known_tokens_and_blanks() -> None:
    batch = draw(torch.arange(1000), 64, 3, seed=1, step=2, block=5)
    places = places_of(batch.roots)
    for window in range(3):
        judged = batch.judged[window].nonzero().flatten().tolist()
        first = judged[0]
        assert bool((places[window, :first] == 0).all())
        assert int(places[window].max()) == 4
        for at in judged[:-1]:
            here, after = int(places[window, at]), int(places[window, at + 1])
            bound, behind = int(batch.bounds[window, at]), int(batch.bounds[window, at + 1])
            assert after == here + 1 if behind == bound and here else after in (0, 1)
            assert behind in (bound, at)  # the next segment begins behind the target's last pass
        known = [int(batch.roots[window, at] - batch.bounds[window, at]) for at in judged if places[window, at]]
        assert set(known) <= {1, 2, 3, 4}


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("tokens", [1, 3])
def test_the_decoder_gives_the_networks_states_of_blanks(arithmetic: str, tokens: int) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    network, _ = random_block(target, scale=0.2)
    decoder, observer = block_and_observer(target, scale=0.2)
    known = 4  # positions that the target has computed; then tokens that are known, and blanks
    blanks = len(network.blanks)
    length = known + tokens + blanks
    theirs, own = read(target, TEXT), read(decoder, TEXT[:known])
    observed = observations(theirs, 0, length, range(3))
    vectors = observer.projected(observer(theirs, 0, known)["observed"])
    for layer in (1, 2):
        own.overwrite(layer, 0, *decoder.keys_and_values(layer, vectors, range(known)))
    texts = [*TEXT[known : known + tokens], *decoder.blanks(blanks)]
    found = decoder.forward(Rows([(own, texts, range(-1, len(texts) - 1))]))

    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(length)))
    bounds = torch.tensor([[at - 1 if at < known else known - 1 for at in range(length)]])
    roots = torch.tensor([[min(at, known + tokens - 1) for at in range(length)]])
    embedded = target.embed(TEXT[:length])[None]
    expected = network(embedded, observed[None], tables, bounds, roots)[0, known:]
    assert torch.allclose(found, expected, atol=0.02)
    other = network(embedded, observed[None], tables, bounds)[0, known:]  # all but the first are blanks there
    assert torch.allclose(other, expected, atol=0.02) == (tokens == 1)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("format", [None, "int8"])
def test_a_correction_changes_logits_as_it_changes_states(arithmetic: str, format: str | None) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    network, trained = random_block(target, scale=0.2)
    config, weights = trained.weights(target)
    cast_to = None if format is None else FORMATS[format]
    decoder = BlockDecoder(config, weights, trained, cast_to, arithmetic=target.arithmetic, threads=1)
    normed = target.norm(torch.randn(4, 32))
    tokens = [3, 1, 4, 1]
    found = decoder.correction(normed, tokens)
    added = network.correction(normed, target.embed(tokens))
    expected = (target.output(normed + added) - target.output(normed))[:, :97]
    assert found.shape == (4, target.config.valid_vocab_size)
    assert torch.allclose(found, expected, atol=0.05 * float(expected.abs().max()))
    assert not torch.allclose(found[1], found[3], atol=1e-3), "states are told apart"


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_drafter_of_some_tokens_gives_their_logits_and_no_others(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    _, whole = random_block(target, scale=0.2)
    some = torch.tensor([2, 3, 5, 7, 60, 96])
    config = replace(whole.config, choices=len(some))
    part = Trained(config, {**whole.tensors, "vocabulary": some})
    logits, corrections = [], []
    for each in (whole, part):
        config, weights = each.weights(target)
        if each is part:
            weights = each.with_head_of_choices(weights, target.weights.head)
        decoder = BlockDecoder(config, weights, each, arithmetic=target.arithmetic, threads=1)
        rows = chain(decoder.new_cache(), [*TEXT, *decoder.blanks(3)])
        outputs = decoder.run(rows)
        logits.append(decoder.over_all(outputs.logits(len(TEXT))))
        corrections.append(decoder.correction(decoder.norm(outputs.hidden[-3:]), [1, 2, 3]))
    kept = torch.full((97,), -torch.inf)
    kept[some] = logits[0][some]
    assert torch.allclose(logits[1], kept, atol=0.05)
    assert torch.allclose(corrections[1], corrections[0][:, some], atol=0.05)
    with pytest.raises(CheckpointError, match="the drafter can draft token 96, and the model has 90; fetch it again"):
        part.with_head_of_choices(weights, Linear(target.weights.embedding[:90], None))


def test_its_parts_are_as_large_as_those_of_a_mixture() -> None:
    config = tiny_config(
        hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=4, head_dim=64
    )
    mixture = mixture_for(config, "27 million")
    its = block_of(mixture, depth=2)
    # beside a mixture's parts: blanks, and the correction's norm and three matrices
    assert parameters_of(its) - parameters_of(mixture) == 6 * 512 + 512 + 3 * 128 * 512
    its = block_of(mixture)
    assert (its.block, its.own_layers, its.num_layers, its.choices) == (7, 4, 4, 0)
    assert block_of(mixture_for(replace(config, vocab_size=128256), "it")).choices == 16384
    assert config_of(its.to_json(), "it") == its
    made = Block(its, 1e-6).state_dict()
    assert expected_shapes(its) == {name: tuple(tensor.shape) for name, tensor in made.items()}
