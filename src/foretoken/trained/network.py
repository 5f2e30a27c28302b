"""The network of a Mixture of Attentions, for training: in PyTorch, over batches of whole windows of text.

    target's keys and values, some layers -> observer --> one vector a token
                                                             |
    embeddings of tokens --> layer 0 (self-attention) --> layer 1 --> final norm and output layer (the target's)

Layer 1 attends to two sources. Up to a bound in the text it sees the observer's vectors, as if the target had computed
that far, and behind the bound its own states. In use, the bound is where the target's last pass ended, or a few tokens
before; in training it is drawn (`training.windows`). In the paper (Zimmer et al. 2025, section 3.1) the cross-attention
sees the first source alone. With both, the drafter is an ordinary decoder of two layers, part of whose cache is written
from the observer's vectors. So it drafts with the native engine's speed, chains and trees alike.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from foretoken.decoder.rope import rotate
from foretoken.trained.config import LAYERS, MixtureConfig

Tables = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of positions, float32 [T, head_dim / 2] each


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
    """Queries of one stream of states, keys and values of one or two."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor | None, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x: [B, T, width]. seen: [B, T, width], whose keys come before those of x. mask: bool [B, 1, T, T or 2T];
        None: every row sees every key."""
        query = self._heads(self.q_proj(x), tables)
        key, value = self._heads(self.k_proj(x), tables), self._heads(self.v_proj(x))
        if seen is not None:
            key = torch.cat((self._heads(self.k_proj(seen), tables), key), dim=2)
            value = torch.cat((self._heads(self.v_proj(seen)), value), dim=2)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: torch.Tensor, tables: Tables | None = None) -> torch.Tensor:
        x = x.view(*x.shape[:-1], -1, self.head_dim)
        if tables is not None:
            x = rotate(x.float(), *tables).to(x.dtype)
        return x.transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width]. Of the same shape."""
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A layer of the drafter, with the names that a Llama checkpoint has."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, inner: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(width, eps)
        self.self_attn = Attention(width, heads, kv_heads, head_dim)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = FeedForward(width, inner)

    def forward(
        self, x: torch.Tensor, tables: Tables, mask: torch.Tensor | None, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `Attention.forward`. One norm serves both streams, as in the reference code."""
        others = None if seen is None else self.input_layernorm(seen)
        x = x + self.self_attn(self.input_layernorm(x), tables, mask, others)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


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
        angles = torch.arange(len(config.layers))[:, None] / 10000.0 ** (torch.arange(half) / half)
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
        mixed = self.layer(observed, self.tables, None)
        vectors: torch.Tensor = self.projection(mixed.mean(1))
        return vectors


class Mixture(nn.Module):
    """The whole network."""

    def __init__(self, config: MixtureConfig, eps: float) -> None:
        super().__init__()
        c = config
        self.layers = nn.ModuleList(
            Layer(c.hidden_size, c.num_heads, c.kv_heads, c.head_dim, c.intermediate_size, eps) for _ in range(LAYERS)
        )
        self.observer = Observer(config, eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, embedded: torch.Tensor, observed: torch.Tensor, tables: Tables, bounds: torch.Tensor
    ) -> torch.Tensor:
        """The states that are to be those of the target's last layer, before the final norm: [B, T, hidden].

        embedded: [B, T, hidden]. observed: [B, T, layers, ...], as the observer takes it. bounds: int [B, T], the last
        position of the target's that each row sees; -1: none.
        """
        causal, masks = masks_of(bounds)
        seen: torch.Tensor = self.observer(observed.flatten(0, 1)).view(embedded.shape)
        own = self.layers[0](embedded, tables, causal)
        states: torch.Tensor = self.layers[1](own, tables, masks, seen)
        return states


def masks_of(bounds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What may be seen: by layer 0, bool [1, 1, T, T]: each row all rows up to itself. By layer 1, bool [B, 1, T, 2T]:
    first the target's positions up to the row's bound, then the drafter's own states from there up to the row."""
    at = torch.arange(bounds.shape[1], device=bounds.device)
    causal = at <= at[:, None]
    true = at <= bounds[..., None]
    own = causal & ~true
    return causal[None, None], torch.cat((true, own), dim=-1)[:, None]
