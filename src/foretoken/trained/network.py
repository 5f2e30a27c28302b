"""The networks of trained drafters, for training: in PyTorch, over batches of whole windows of text.

    target's keys and values, some layers -> observer --> one vector a token
                                                             |
    embeddings of tokens --> layer 0 (self-attention) --> layer 1 --> final norm and output layer (the target's)

That is a Mixture of Attentions. Its layer 1 attends to two sources. Up to a bound in the text it sees the observer's
vectors, as if the target had computed that far, and behind the bound its own states. In use, the bound is where the
target's last pass ended, or a few tokens before; in training it is drawn (`training.windows`). In the paper (Zimmer et
al. 2025, section 3.1) the cross-attention sees the first source alone. With both, the drafter is an ordinary decoder of
two layers, part of whose cache is written from the observer's vectors. So it drafts with the native engine's speed,
chains and trees alike. With target layer inference (section 3.2), the target's last layers follow layer 1, and see the
target's own keys and values up to the bound.

A stack (`Stack`) is a few layers over embeddings. In EAGLE's, each row's input is made of its token's embedding and of
a state of the row before it: the target's, or in a draft the drafter's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.rope import rotate
from foretoken.trained.config import EAGLE3, BlockConfig, MixtureConfig, StackConfig

Tables = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of positions, float32 [T, head_dim / 2] each
KeysValues = tuple[torch.Tensor, torch.Tensor]  # of T positions: [B, kv_heads, T, head_dim] each


class Norm(nn.Module):
    """RMS norm. x: [..., width]; computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32, of the same shape."""
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Queries of one stream of states; keys and values of it, and of what was before. qkv_bias, output_bias, qk_norm:
    as the target's layers have them; the drafters' own have none."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        like: DecoderConfig | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        bias = like is not None and like.qkv_bias
        self.q_proj = nn.Linear(width, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=like is not None and like.output_bias)
        normed = like is not None and like.qk_norm
        self.q_norm = Norm(head_dim, like.norm_eps) if normed and like else None
        self.k_norm = Norm(head_dim, like.norm_eps) if normed and like else None

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor | None, before: Sequence[KeysValues] = ()
    ) -> tuple[torch.Tensor, KeysValues]:
        """x: [B, T, width]. before: keys and values that come before those of x. mask: bool [B, 1, T, keys]; None:
        every row sees every key. Returns what was attended to, and the keys and values of x."""
        query = self._heads(self.q_proj(x), self.q_norm, tables)
        own = self.keys_and_values(x, tables)
        key, value = (
            torch.cat((*(pair[which].to(query.dtype) for pair in before), own[which]), dim=2) if before else own[which]
            for which in (0, 1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2)), own

    def keys_and_values(self, x: torch.Tensor, tables: Tables) -> KeysValues:
        """The keys and values of states."""
        return self._heads(self.k_proj(x), self.k_norm, tables), self._heads(self.v_proj(x))

    def _heads(self, x: torch.Tensor, norm: Norm | None = None, tables: Tables | None = None) -> torch.Tensor:
        heads = x.view(*x.shape[:-1], -1, self.head_dim)
        if tables is not None:
            heads = rotate((heads if norm is None else norm(heads)).float(), *tables).to(x.dtype)
        return heads.transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width]. Of the same shape."""
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer, with the names that a Llama checkpoint has. like: the target, if it is one of its layers."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        inner: int,
        eps: float,
        like: DecoderConfig | None = None,
    ) -> None:
        super().__init__()
        self.input_layernorm = Norm(width, eps)
        self.self_attn = Attention(width, heads, kv_heads, head_dim, like)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = FeedForward(width, inner, bias=like is not None and like.mlp_bias)

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor | None, before: Sequence[KeysValues] = ()
    ) -> tuple[torch.Tensor, KeysValues]:
        """As `Attention.forward`: the states behind the layer, and the keys and values of those before it."""
        attended, own = self.self_attn(self.input_layernorm(x), tables, mask, before)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), own

    def keys_and_values(self, x: torch.Tensor, tables: Tables) -> KeysValues:
        """Of other states than its own, with the same norm, as in the reference code."""
        found: KeysValues = self.self_attn.keys_and_values(self.input_layernorm(x), tables)
        return found


class Observer(nn.Module):
    """Layer self-attention: for each token, attention over layers of the target, whose mean becomes one vector.

    Source: Zimmer et al. 2025, section 3.1; there all layers are seen. Positions are those of layers among the observed
    ones. There is no mask.
    """

    def __init__(self, config: MixtureConfig, eps: float) -> None:
        super().__init__()
        width, heads = config.observed, config.observer_heads
        self.layer = Layer(
            width, heads, config.observer_kv_heads, width // heads, config.observer_intermediate_size, eps
        )
        self.projection = nn.Linear(width, config.hidden_size)
        half = width // heads // 2
        angles = torch.arange(len(config.layers))[:, None] / config.observer_theta ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @property
    def tables(self) -> Tables:
        """Cosines and sines of the numbers of layers."""
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        return cos, sin

    def forward(self, observed: torch.Tensor) -> torch.Tensor:
        """observed: [N, layers of the target, 2 * kv_heads * head_dim], as `observations` makes it. Returns [N,
        hidden]."""
        vectors: torch.Tensor = self.projection(self.seen(observed))
        return vectors

    def seen(self, observed: torch.Tensor) -> torch.Tensor:
        """The mean over the layers, before the projection: [N, 2 * kv_heads * head_dim]."""
        mixed, _ = self.layer(observed, self.tables, None)
        mean: torch.Tensor = mixed.mean(1)
        return mean


class Mixture(nn.Module):
    """The whole network, but for the target's layers. observer: another than `Observer`, which takes what it is
    given."""

    def __init__(self, config: MixtureConfig, eps: float, observer: nn.Module | None = None) -> None:
        super().__init__()
        c = config
        self.layers = nn.ModuleList(
            Layer(c.hidden_size, c.num_heads, c.kv_heads, c.head_dim, c.intermediate_size, eps)
            for _ in range(c.own_layers)
        )
        self.observer = Observer(config, eps) if observer is None else observer
        self.register_buffer("vocabulary", torch.arange(c.choices) if c.choices else None)
        begin(self)

    def forward(
        self, embedded: torch.Tensor, observed: torch.Tensor, tables: Tables, bounds: torch.Tensor
    ) -> torch.Tensor:
        """The states that are to be those of the target, before its last layers and its final norm: [B, T, hidden].

        embedded: [B, T, hidden]. observed: [B, T, ...], as the observer takes it. bounds: int [B, T], the last position
        of the target's that each row sees; -1: none.
        """
        causal, masks = masks_of(bounds)
        seen: torch.Tensor = self.observer(observed.flatten(0, 1)).view(embedded.shape)
        own, _ = self.layers[0](embedded, tables, causal)
        second = self.layers[1]
        assert isinstance(second, Layer)
        states: torch.Tensor = second(own, tables, masks, [second.keys_and_values(seen, tables)])[0]
        return states


class Block(Mixture):
    """A Mixture of Attentions whose rows are the last token of a text and, behind it, places that are still blank. A
    blank sees the text and the blanks before it, so one pass says what may stand in all of them.

    Each blank is filled without knowing what was chosen for the one before. `correction` says what that changes.

    Sources: blanks as queries over what the target has computed, DFlash (2602.06036), causal as in JetSpec
    (2606.18394); a correction by the token before, DSpark (its "Markov head"), there a table of the vocabulary.
    """

    def __init__(self, config: BlockConfig, eps: float, observer: nn.Module | None = None) -> None:
        super().__init__(config, eps, observer)
        self.blanks = nn.Parameter(torch.empty(config.block - 1, config.hidden_size).normal_(std=0.02))
        self.correction = Correction(config.hidden_size, config.rank, eps)
        begin(self.correction)

    def forward(
        self,
        embedded: torch.Tensor,
        observed: torch.Tensor,
        tables: Tables,
        bounds: torch.Tensor,
        roots: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `Mixture.forward`. roots: int [B, T], the last position whose token a row knows; a row behind it is a
        blank. None: that is the first position behind the bound."""
        roots = bounds + 1 if roots is None else roots
        _, of_tokens = masks_of(roots)
        _, of_vectors = masks_of(bounds)
        seen: torch.Tensor = self.observer(observed.flatten(0, 1)).view(embedded.shape)
        states = self.entered(embedded, roots)
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            known, mask = (seen, of_vectors) if at else (embedded, of_tokens)
            states, _ = layer(states, tables, mask, [layer.keys_and_values(known, tables)])
        return states

    def go_on_from(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with the weights of a mixture. Layers that it lacks add nothing at first, and see what its last one
        sees."""
        there = sum(name.endswith("q_proj.weight") and name.startswith("layers.") for name in tensors)
        last, more = f"layers.{there - 1}.", {}
        for at in range(there, len(self.layers)):
            for name, tensor in tensors.items():
                if name.startswith(last):
                    silent = name.endswith(("o_proj.weight", "down_proj.weight"))
                    more[name.replace(last, f"layers.{at}.")] = torch.zeros_like(tensor) if silent else tensor
        lacking, unknown = self.load_state_dict({**tensors, **more}, strict=False)
        own = ("blanks", "vocabulary", "correction.")
        assert not unknown
        assert all(name.startswith(own) for name in lacking)
        nn.init.zeros_(self.correction.out.weight)

    def entered(self, embedded: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        """The rows' input: embeddings of tokens, and blanks by their places: [B, T, hidden]."""
        place = places_of(roots)
        blanks = self.blanks[place.clamp(1, len(self.blanks)) - 1]
        return torch.where((place == 0)[..., None], embedded, blanks.to(embedded.dtype))


class Correction(nn.Module):
    """What the token before a blank changes of the state of the blank, behind the final norm."""

    def __init__(self, width: int, rank: int, eps: float) -> None:
        super().__init__()
        self.norm = Norm(width, eps)
        self.of_state = nn.Linear(width, rank, bias=False)
        self.of_token = nn.Linear(width, rank, bias=False)
        self.out = nn.Linear(rank, width, bias=False)

    def forward(self, normed: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """normed: states behind the final norm. embedded: of the token before each: [..., hidden] both. What is to be
        added to the states."""
        added: torch.Tensor = self.out(functional.silu(self.of_state(normed) + self.of_token(self.norm(embedded))))
        return added


class Stack(nn.Module):
    """A few layers over embeddings and, in EAGLE's, over a state of the row before."""

    def __init__(self, config: StackConfig, eps: float) -> None:
        super().__init__()
        c, width = config, config.hidden_size
        self.layers = nn.ModuleList(
            Layer(width, c.num_heads, c.kv_heads, c.head_dim, c.intermediate_size, eps) for _ in range(c.depth)
        )
        seen = len(c.sees)
        self.reduction = nn.Linear(seen * width, width, bias=False) if c.method == EAGLE3 else None
        self.embedded_norm = Norm(width, eps) if c.method == EAGLE3 else None
        self.seen_norm = Norm(width, eps) if c.method == EAGLE3 else None
        self.combination = nn.Linear(2 * width, width, bias=False) if seen else None
        begin(self)

    def reduced(self, seen: torch.Tensor) -> torch.Tensor:
        """What a row sees of the target: [B, T, hidden], of [B, T, hidden of all that is seen]."""
        return seen if self.reduction is None else self.reduction(seen)

    def combined(self, embedded: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The rows' input: of the embedding of each, and the state of the row before it."""
        if self.combination is None:
            return embedded
        if self.embedded_norm is not None and self.seen_norm is not None:
            embedded, states = self.embedded_norm(embedded), self.seen_norm(states)
        entered: torch.Tensor = self.combination(torch.cat((embedded, states), dim=-1))
        return entered

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor, before: Sequence[Sequence[KeysValues]] = ()
    ) -> tuple[torch.Tensor, list[KeysValues]]:
        """One step over all rows. x: their input. before: for each earlier step, the keys and values of all layers.
        Returns the states behind the last layer, and this step's keys and values."""
        made: list[KeysValues] = []
        for at, layer in enumerate(self.layers):
            x, own = layer(x, tables, mask, [step[at] for step in before])
            made.append(own)
        return x, made


def begin(network: nn.Module) -> None:
    """Draw a network's first weights."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def places_of(roots: torch.Tensor) -> torch.Tensor:
    """How far each row lies behind its root: int [B, T]; 0 for a token."""
    return torch.arange(roots.shape[1], device=roots.device) - roots


def masks_of(bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What may be seen: by a mixture's layer 0, bool [1, 1, T, T]: each row all rows up to itself. By its layer 1, bool
    [B, 1, T, 2T]: first the target's positions up to the row's bound, then the drafter's own states from there up to
    the row."""
    at = torch.arange(bounds.shape[1], device=bounds.device)
    causal = at <= at[:, None]
    true = at <= bounds[..., None]
    own = causal & ~true
    return causal[None, None], torch.cat((true, own), dim=-1)[:, None]


def mask_of_step(length: int, step: int, device: torch.device) -> torch.Tensor:
    """What rows see that lie `step` tokens behind the beginning of a draft, from 1 up: bool [1, 1, T, step * T]. The
    first T keys are those of rows that saw the target's states, up to the first row of the draft. The next are those of
    rows one token further on in a draft, of which each sees its own draft's; and so on, up to itself."""
    at = torch.arange(length, device=device)
    first = at <= (at[:, None] - step + 1)
    further = [at == (at[:, None] - step + 1 + ahead) for ahead in range(1, step)]
    return torch.cat((first, *further), dim=-1)[None, None]
