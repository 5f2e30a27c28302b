"""Published drafters as their authors' code defines them, over all rows at once: nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from foretoken.decoder.config import DecoderConfig
from foretoken.trained.published_block import PublishedBlock
from foretoken.trained.published_eagle import PublishedEagle
from foretoken.trained.published_mixture import PublishedMixture


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def heads(own: DecoderConfig, part: dict[str, torch.Tensor], which: str, x: torch.Tensor) -> torch.Tensor:
    """The queries, keys or values of a layer: [rows, heads, head_dim]."""
    bias = part.get(f"self_attn.{which}_proj.bias")
    made = linear(x, part[f"self_attn.{which}_proj.weight"], bias).view(len(x), -1, own.head_dim)
    by_head = part.get(f"self_attn.{which}_norm.weight")
    return made if by_head is None else norm(made, by_head, own.norm_eps)


def turned(own: DecoderConfig, made: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
    half = own.head_dim // 2
    angles = torch.tensor(positions)[:, None] * own.rope.theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    one, other = made[..., :half], made[..., half:]
    return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)


def attended(
    part: dict[str, torch.Tensor], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    by_heads = [each.transpose(0, 1)[None] for each in (query, key, value)]
    found = scaled_dot_product_attention(*by_heads, is_causal=causal, enable_gqa=True)
    out = found[0].transpose(0, 1).flatten(1)
    return linear(out, part["self_attn.o_proj.weight"], part.get("self_attn.o_proj.bias"))


def fed_forward(own: DecoderConfig, part: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = norm(x, part["post_attention_layernorm.weight"], own.norm_eps)
    gate, up = (linear(h, part[f"mlp.{w}_proj.weight"], part.get(f"mlp.{w}_proj.bias")) for w in ("gate", "up"))
    return linear(silu(gate) * up, part["mlp.down_proj.weight"], part.get("mlp.down_proj.bias"))


def part_of(tensors: dict[str, torch.Tensor], layer: int) -> dict[str, torch.Tensor]:
    start = f"layers.{layer}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


class DefinedEagle:
    """An EAGLE-3. embedding, head: those that it uses."""

    def __init__(
        self, config: PublishedEagle, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, head: torch.Tensor
    ) -> None:
        self.c, self.own, self.t = config, config.own, {name: tensor.float() for name, tensor in tensors.items()}
        self.embedding, self.head = embedding.float(), head.float()

    def reduced(self, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """The states that rows follow: [rows, hidden]. seen: what each layer is given, as the configuration names
        them."""
        eps, states = self.own.norm_eps, list(seen)
        if self.c.norms == "each":
            states = [norm(each, self.t[f"seen{at}.weight"], eps) for at, each in enumerate(states)]
        both = torch.cat(states, dim=-1)
        both = norm(both, self.t["seen.weight"], eps) if self.c.norms == "all" else both
        return linear(both, self.t["reduction.weight"])

    def rows(self, tokens: Sequence[int], states: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of what can be drafted, and the state that is handed on, of the last of some rows. states: of each,
        the one before it."""
        eps, places = self.own.norm_eps, range(len(tokens))
        embedded = norm(self.embedding[list(tokens)], self.t["embedded_norm.weight"], eps)
        normed = norm(torch.stack(list(states)), self.t["seen_norm.weight"], eps)
        x = normed if self.c.residual_normed else torch.stack(list(states))
        for at in range(self.own.num_layers):
            part = part_of(self.t, at)
            enters = torch.cat((embedded, normed), -1) if at == 0 else norm(x, part["input_layernorm.weight"], eps)
            query, key = (turned(self.own, heads(self.own, part, which, enters), places) for which in "qk")
            x = x + attended(part, query, key, heads(self.own, part, "v", enters), causal=True)
            x = x + fed_forward(self.own, part, x)
        put_out = norm(x[-1], self.t["norm.weight"], eps)
        return linear(put_out, self.head), put_out if self.c.hands_on_normed else x[-1]


class DefinedBlock:
    """A DFlash. embedding, head: those that it uses."""

    def __init__(
        self, config: PublishedBlock, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, head: torch.Tensor
    ) -> None:
        self.c, self.own, self.t = config, config.own, {name: tensor.float() for name, tensor in tensors.items()}
        self.embedding, self.head = embedding.float(), head.float()

    def block(self, seen: Sequence[torch.Tensor], last: int, rows: int) -> torch.Tensor:
        """Logits of all rows of a block. seen: what each layer is given, of all tokens but the last."""
        eps, before = self.own.norm_eps, len(seen[0])
        vectors = norm(linear(torch.cat(list(seen), -1), self.t["reduction.weight"]), self.t["seen_norm.weight"], eps)
        x, places = self.embedding[[last] + [self.c.mask] * (rows - 1)], range(before + rows)
        for at in range(self.own.num_layers):
            part = part_of(self.t, at)
            enters = norm(x, part["input_layernorm.weight"], eps)
            key, value = (heads(self.own, part, which, torch.cat((vectors, enters))) for which in "kv")
            query = turned(self.own, heads(self.own, part, "q", enters), places[before:])
            x = x + attended(part, query, turned(self.own, key, places), value, causal=False)
            x = x + fed_forward(self.own, part, x)
        return linear(norm(x, self.t["norm.weight"], eps), self.head)


class DefinedMixture:
    """A Mixture of Attentions. embedding, head: the target's."""

    def __init__(
        self, config: PublishedMixture, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, head: torch.Tensor
    ) -> None:
        self.c, self.own, self.t = config, config.own, {name: tensor.float() for name, tensor in tensors.items()}
        self.embedding, self.head = embedding.float(), head.float()

    def observed(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
        """A vector for each token that the target has read. keys, values: of all layers, [tokens, heads, head_dim]."""
        start, heads = "observer.layer.", self.c.num_heads
        part = {name.removeprefix(start): tensor for name, tensor in self.t.items() if name.startswith(start)}
        of_layers = replace(self.own, head_dim=self.c.observed // heads)
        found = []
        for token in range(len(keys[0])):
            both = [torch.cat((key[token], value[token]), -1) for key, value in zip(keys, values, strict=True)]
            x = torch.stack([each.flatten() for each in both])
            x = self._layer(of_layers, part, x, x, range(len(x)), range(len(x)), causal=False)
            found.append(x.mean(0))
        return linear(torch.stack(found), self.t["observer.projection.weight"], self.t["observer.projection.bias"])

    def row(self, vectors: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Logits of the last of some tokens. vectors: what was observed of the first of them."""
        places, seen = range(len(tokens)), range(len(vectors))
        x = self.embedding[list(tokens)]
        x = self._layer(self.own, part_of(self.t, 0), x, x, places, places, causal=True)
        x = self._layer(self.own, part_of(self.t, 1), x[-1:], vectors, places[-1:], seen, causal=False)
        return linear(x[0], self.head)

    def _layer(
        self,
        own: DecoderConfig,
        part: dict[str, torch.Tensor],
        x: torch.Tensor,
        seen: torch.Tensor,
        places: Sequence[int],
        of_seen: Sequence[int],
        *,
        causal: bool,
    ) -> torch.Tensor:
        entered, sees = (norm(each, part["input_layernorm.weight"], own.norm_eps) for each in (x, seen))
        query = turned(own, heads(own, part, "q", entered), places)
        key, value = turned(own, heads(own, part, "k", sees), of_seen), heads(own, part, "v", sees)
        x = x + attended(part, query, key, value, causal=causal)
        return x + fed_forward(own, part, x)
