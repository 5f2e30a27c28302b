"""What each row of a Mixture of Attentions may see, and that its decoder computes what its network does."""

from __future__ import annotations

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rope import RopeTable
from foretoken.decoder.rows import Rows, chain
from foretoken.formats import FORMATS
from foretoken.protocol.telemetry import Cost
from foretoken.trained.config import config_of
from foretoken.trained.files import expected_shapes, parameters_of
from foretoken.trained.following import Before
from foretoken.trained.network import Mixture, Stack, mask_of_step, masks_of
from foretoken.trained.observer import observations
from foretoken.trained.sizes import mixture_for
from foretoken.training.kinds import Kind
from foretoken.training.teacher import layers_of
from tests.mixtures import decoder_and_observer, following_decoder, random_mixture, random_stack
from tests.tiny import ARITHMETICS, needs_native, tiny_config, tiny_decoder

TEXT = [5, 17, 3, 88, 41, 9, 60, 2, 33, 71]


def read(decoder: Decoder, tokens: list[int]) -> Cache:
    """A cache that holds a text."""
    cache = decoder.new_cache()
    rows = chain(cache, tokens)
    decoder.forward(rows)
    cache.commit(range(len(tokens)), rows.writer)
    return cache


def test_the_masks_are_those_of_a_prompt_and_two_drafts() -> None:
    # a prompt of three tokens, then drafts of four and of three. T: a position of the target's; o: an own state
    drawn = """
        .......... o.........
        T......... .o........
        TT........ ..o.......
        TTT....... ...o......
        TTT....... ...oo.....
        TTT....... ...ooo....
        TTT....... ...oooo...
        TTTTTTT... .......o..
        TTTTTTT... .......oo.
        TTTTTTT... .......ooo
    """
    bounds = torch.tensor([[-1, 0, 1, 2, 2, 2, 2, 6, 6, 6]])
    causal, masks = masks_of(bounds)
    for row, line in enumerate(drawn.strip().splitlines()):
        seen = line.replace(" ", "")
        assert masks[0, 0, row].tolist() == [mark != "." for mark in seen]
        assert causal[0, 0, row].tolist() == [at <= row for at in range(10)]


def test_a_row_depends_on_what_it_may_see_and_on_nothing_else() -> None:
    target = tiny_decoder()
    network, _ = random_mixture(target, scale=0.2)
    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(6)))
    bounds = torch.tensor([[-1, 0, 1, 1, 1, 4]])
    embedded = torch.randn(1, 6, 32)
    observed = torch.randn(1, 6, 3, 32)
    before = network(embedded, observed, tables, bounds)

    def rows_changed(what: torch.Tensor, at: int) -> list[int]:
        changed = what.clone()
        changed[:, at] += 1
        now = network(
            changed if what is embedded else embedded, changed if what is observed else observed, tables, bounds
        )
        return [row for row in range(6) if not torch.equal(now[0, row], before[0, row])]

    assert [rows_changed(observed, at) for at in range(6)] == [[1, 2, 3, 4, 5], [2, 3, 4, 5], [5], [5], [5], []]
    assert [rows_changed(embedded, at) for at in range(6)] == [list(range(at, 6)) for at in range(6)]


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_the_decoder_with_the_observers_keys_and_values_gives_the_networks_states(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    network, _ = random_mixture(target, scale=0.2)
    decoder, observer = decoder_and_observer(target, scale=0.2)
    known = 6  # positions that the target has computed; the other four tokens are a draft
    theirs, own = read(target, TEXT), read(decoder, TEXT[:known])
    observed = observations(theirs, 0, len(TEXT), range(3))
    vectors = observer.projected(observer(theirs, 0, known)["observed"])
    own.overwrite(1, 0, *decoder.keys_and_values(1, vectors, range(known)))
    found = decoder.forward(Rows([(own, TEXT[known:], range(-1, len(TEXT) - known - 1))]))

    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(len(TEXT))))
    bounds = torch.tensor([[at - 1 if at < known else known - 1 for at in range(len(TEXT))]])
    expected = network(target.embed(TEXT)[None], observed[None], tables, bounds)[0, known:]
    assert torch.allclose(found, expected, atol=0.02)  # the native observer rounds what it multiplies to bf16
    plain = decoder.new_cache()  # without the observer the states are others: it was looked at
    assert not torch.allclose(decoder.forward(chain(plain, TEXT))[known:], expected, atol=0.05)


@needs_native
@pytest.mark.parametrize("format", [None, "int8"])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_the_native_observer_is_that_of_training(tokens: int, format: str | None) -> None:
    target = tiny_decoder(num_key_value_heads=4, head_dim=16)
    network, made = random_mixture(target, scale=0.2)
    observer = made.observer(target, None if format is None else FORMATS[format])
    assert observer is not None
    cache = target.new_cache()
    text = [at % 90 for at in range(tokens + 2)]
    rows = chain(cache, text)
    target.forward(rows)
    cache.commit(range(len(text)), rows.writer)
    seen = observer(cache, 2, tokens + 2)["observed"]
    assert seen.shape == (tokens, 2 * 4 * 16)
    found = observer.projected(seen)
    expected = network.observer(observations(cache, 2, tokens + 2, range(3)))
    assert found.shape == (tokens, 32)
    assert torch.allclose(found, expected, atol=(0.03 if format is None else 0.06) * float(expected.abs().max()))
    assert not torch.allclose(found[:-1], found[1:], atol=1e-3) or tokens == 1, "tokens are told apart"


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_keys_and_values_are_those_that_a_pass_writes(arithmetic: str, family: str) -> None:
    decoder = tiny_decoder(arithmetic=arithmetic, model_type=family)
    cache = decoder.new_cache()
    rows = chain(cache, TEXT)
    hidden = decoder.layers(decoder.embed(rows), rows, 0, 1)
    decoder.layers(hidden, rows, 1, 2)
    for found, written in zip(decoder.keys_and_values(1, hidden, range(len(TEXT))), cache.read(1), strict=True):
        assert torch.equal(found.to(written.dtype), written)


def test_sizes_follow_the_budget_of_one_layer_and_a_projection() -> None:
    config = tiny_config(
        hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=4, head_dim=64
    )
    its = mixture_for(config, "27 million")
    assert (its.intermediate_size, its.kv_heads, its.observer_heads) == (320, 2, 8)  # as the specification counts
    eagle = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1536 + 2 * 512 * 512
    assert abs(parameters_of(its) - eagle) < 0.03 * eagle
    assert config_of(its.to_json(), "it") == its
    made = Mixture(its, 1e-6).state_dict()
    assert expected_shapes(its) == {name: tuple(tensor.shape) for name, tensor in made.items()}


def test_the_mask_of_a_step_is_that_of_a_row_of_a_draft() -> None:
    # the third token of a draft: of the states that followed the target's, those up to the draft's first row; then its
    # second row, and itself
    drawn = """
        ....... ....... o......
        ....... o...... .o.....
        o...... .o..... ..o....
        oo..... ..o.... ...o...
        ooo.... ...o... ....o..
    """
    mask = mask_of_step(7, 3, torch.device("cpu"))
    for row, line in enumerate(drawn.strip().splitlines()):
        assert mask[0, 0, row].tolist() == [mark != "." for mark in line.replace(" ", "")], row
    assert torch.equal(mask_of_step(7, 1, torch.device("cpu"))[0, 0], torch.ones(7, 7).tril().bool())


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("inferred", [1, 2])
def test_with_the_targets_own_state_its_last_layers_give_its_own_logits(arithmetic: str, inferred: int) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    decoder, observer = decoder_and_observer(target, scale=0.2, inferred=inferred)
    known, begins = 6, target.config.num_layers - inferred
    theirs = read(target, TEXT[:known])
    after = chain(theirs, TEXT[known:])
    before = target.layers(target.embed(after), after, 0, begins)
    truth = target.head(target.layers(before, after, begins))

    own = read(decoder, TEXT[:known])
    features = observer(theirs, 0, known)
    for layer in range(begins, target.config.num_layers):
        own.overwrite(2 + layer - begins, 0, features[f"keys.{layer}"], features[f"values.{layer}"])
    after = Rows([(own, TEXT[known:], range(-1, len(TEXT) - known - 1))])
    found = decoder.head(decoder.layers(before, after, 2))
    assert torch.equal(found, truth)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_the_decoder_that_ends_with_the_targets_layers_gives_the_networks_states(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    network, trained = random_mixture(target, scale=0.2, inferred=1)
    decoder, observer = decoder_and_observer(target, scale=0.2, inferred=1)
    known, (last,) = 6, trained.config.ends  # type: ignore[attr-defined]
    theirs, own = read(target, TEXT), read(decoder, TEXT[:known])
    observed = observations(theirs, 0, len(TEXT), range(3))
    features = observer(theirs, 0, known)
    own.overwrite(1, 0, *decoder.keys_and_values(1, observer.projected(features["observed"]), range(known)))
    own.overwrite(2, 0, features[f"keys.{last}"], features[f"values.{last}"])
    found = decoder.forward(Rows([(own, TEXT[known:], range(-1, len(TEXT) - known - 1))]))

    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(len(TEXT))))
    bounds = torch.tensor([[at - 1 if at < known else known - 1 for at in range(len(TEXT))]])
    states = network(target.embed(TEXT)[None], observed[None], tables, bounds)
    (layer,) = layers_of(target.config, tiny_decoder().weights, (last,), torch.device("cpu"))
    cached = tuple(each.transpose(0, 1)[None].float() for each in theirs.read(last))
    expected = layer.float()(states, tables, masks_of(bounds)[1], [cached])[0][0, known:]
    assert torch.allclose(found, expected, atol=0.03 * float(expected.abs().max()))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("method", ["eagle2", "eagle3"])
def test_a_decoder_that_follows_states_gives_the_networks_states(arithmetic: str, method: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    network, trained = random_stack(target, method, scale=0.2)
    decoder = following_decoder(target, method, scale=0.2)
    cache = target.new_cache()
    rows, taps = chain(cache, TEXT), {}
    hidden = target.embed(rows)
    for layer in range(target.config.num_layers):
        taps[layer] = hidden
        hidden = target.layers(hidden, rows, layer, layer + 1)
    features = {f"hidden.{layer}": each for layer, each in taps.items()} | {"normed": target.norm(hidden)}
    known = 6  # rows that the target has computed; the token behind them is the root, and four are a draft

    own, before = decoder.new_cache(), Before()
    before.known = list(decoder.reduced(features).numpy()[:known])
    decoder.follow(own, before)
    rows = chain(own, TEXT[: known + 1])
    found = [decoder.forward(rows)[-1]]
    own.commit(range(known + 1), rows.writer)
    for token in TEXT[known + 1 :]:  # each follows what the one before has put out
        rows = chain(own, [token])
        found.append(decoder.forward(rows)[0])

    tables = RopeTable(target.config.rope, target.config.head_dim, torch.device("cpu"))(list(range(len(TEXT))))
    embedded, steps = target.embed(TEXT)[None], []
    seen = features["normed"] if method == "eagle2" else torch.cat([taps[at] for at in trained.config.sees], -1)  # type: ignore[attr-defined]
    states = network.reduced(seen[None])
    for step in range(1, len(TEXT) - known + 1):
        entered = network.combined(embedded, torch.cat((torch.zeros(1, 1, 32), states[:, :-1]), 1))
        out, made = network(entered, tables, mask_of_step(len(TEXT), step, torch.device("cpu")), steps)
        steps.append(made)
        expected = out[0, known + step - 1]
        assert torch.allclose(found[step - 1], expected, atol=0.02 * float(expected.abs().max()) + 0.01), step
        states = out if method == "eagle3" else target.norm(out[0])[None]


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("method", ["eagle2", "eagle3", "published"])
def test_a_trees_rows_follow_their_own_parents(arithmetic: str, method: str) -> None:
    """Two texts in one pass, each with a tree of two branches: every row is that of a chain along its own path."""
    target = tiny_decoder(arithmetic=arithmetic)
    decoder = following_decoder(target, method, scale=0.3)
    known = torch.randn(2, len(TEXT), 32, generator=torch.Generator().manual_seed(5)).numpy()
    branches = {(): 11, (0,): 12, (1,): 13, (0, 0): 14, (0, 1): 15, (1, 0): 16}  # tokens by their path

    def begun(text: int) -> Cache:
        cache, before = decoder.new_cache(), Before(list(known[text][:-1]))
        decoder.follow(cache, before)
        rows = chain(cache, TEXT[:-1])
        decoder.forward(rows)
        cache.commit(range(len(TEXT) - 1), rows.writer)
        return cache

    def along(text: int, path: tuple[int, ...]) -> torch.Tensor:
        cache = begun(text)
        for length in range(len(path) + 1):
            hidden = decoder.forward(chain(cache, [branches[path[:length]]]))
        return hidden[0]

    caches = [begun(text) for text in range(2)]
    levels: list[list[tuple[int, ...]]] = [[()], [(0,), (1,)], [(0, 0), (0, 1), (1, 0)]]
    places: dict[tuple[int, ...], int] = {}
    for level in levels:
        slots = {path: len(places) + at for at, path in enumerate(level)}
        parents = [places[path[:-1]] if path else -1 for path in level]
        rows = Rows([(cache, [branches[path] for path in level], parents) for cache in caches])
        hidden = decoder.forward(rows)
        places |= slots
        for text, segment in enumerate(rows.segments):
            for at, path in enumerate(level):
                found = hidden[segment.span.start + at]
                assert torch.allclose(found, along(text, path), atol=1e-3), (text, path)
    assert not torch.allclose(along(0, (0, 1)), along(1, (0, 1)), atol=1e-2)


def test_what_a_chain_in_one_call_costs_is_what_its_steps_cost() -> None:
    target = tiny_decoder()
    decoder = following_decoder(target, "eagle2")
    drafted = decoder.draft_chain(decoder.new_cache(), 5, 3)
    other, steps = decoder.new_cache(), Cost()
    for token in (5, *drafted.tokens[:-1]):
        rows = chain(other, [token])
        decoder.run(rows)
        steps += rows.cost
    assert len(drafted.tokens) == 3
    assert drafted.cost == steps
    assert steps.flops > 0


def test_all_kinds_have_about_as_many_parameters_and_the_tensors_that_their_sizes_say() -> None:
    config = tiny_config(
        num_hidden_layers=8,
        hidden_size=512,
        intermediate_size=1536,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    )
    eagle = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1536 + 2 * 512 * 512
    for kind in (Kind(), Kind(inferred=3), Kind("eagle2"), Kind("eagle2", depth=3), Kind("eagle3")):
        its = kind.config(config, "27 million")
        assert abs(parameters_of(its) - eagle) < 0.04 * eagle, kind
        assert config_of(its.to_json(), "it") == its
        made = (Mixture if kind.name == "moa" else Stack)(its, 1e-6).state_dict()  # type: ignore[arg-type]
        assert expected_shapes(its) == {name: tuple(tensor.shape) for name, tensor in made.items()}, kind
    assert parameters_of(Kind("eagle2", wide=2.0).config(config, "it")) > 1.5 * eagle
