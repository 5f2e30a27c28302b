"""The native kernels' arithmetic with low-bit weights, in PyTorch: the definition of their bits.

With bf16 inputs, a low-bit weight gives the same as the bf16 weight that holds the values of its codes
(`foretoken.formats.values`), so `reference.linear` defines these bits. This module defines the rest: int8
inputs, and attention over keys and values in int8, which drafts use; and fp32 inputs with mxfp4, for comparison (paper
004, sections III-D and IV-D).
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from foretoken.formats.quantiser import quantise
from foretoken.formats.table import BLOCK, FORMATS, PLACES
from foretoken.formats.values import codes_of
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import reference
from foretoken.kernels.reference import flushed, fused

SMALLEST, LARGEST = 2.0**-40, 2.0**60  # largest of 32 inputs: if below, all are zero; if above, the row is NaN
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantise_inputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows as drafts compute with them: each block of 32 inputs becomes whole numbers from -127 to 127 with a scale.

    x: float32 [N, K]. Returns the numbers, int32 [N, blocks, 32], the scales, float32 [N, blocks], and whether each row
    is sound: all its inputs are numbers of at most 2**60 in size. A block with all inputs below 2**-40 is zero.
    """
    blocks = _blocks(x)
    top = blocks.abs().amax(-1)
    sound = (top <= LARGEST).all(-1)
    used = (top >= SMALLEST) & (top <= LARGEST)
    top = torch.where(used, top, torch.ones(()))
    by = torch.tensor(127.0) / top  # a tensor: for a Python number PyTorch multiplies by a reciprocal, and rounds twice
    numbers = torch.where(used[..., None], (blocks * by[..., None]).round(), torch.zeros(()))
    return numbers.nan_to_num().to(torch.int32), torch.where(used, top / torch.tensor(127.0), torch.ones(())), sound


def linear_int8(x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x: float32 [N, K], quantised here; bias: float32 [M]. Returns float32 [N, M], NaN in rows that are not sound (see
    `quantise_inputs`).

    Products are whole numbers, and their sums over a block of 32 inputs are exact. Each step below is rounded once.
    mxfp4: each block's sum times its two scales is added to the result, block after block. int8: each block's sum times
    the inputs' scale is added in the same way; the result is then multiplied by the output's scale. Groups: each
    block's sum times the inputs' scale is added within the group; the group's zero point times the sum of its inputs is
    subtracted; the difference times the group's scale is added to the result.
    """
    with flushed():
        numbers, scales, sound = quantise_inputs(x)
        out = _grouped(numbers, scales, weight) if weight.format.has_zeros else _scaled(numbers, scales, weight)
        out = out * torch.where(sound, 1.0, torch.nan)[:, None]
        return out if bias is None else out + bias


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """[..., K] as [..., blocks, 32], with zeros behind the last input."""
    padded = pad(x, (0, -x.shape[-1] % BLOCK))
    return padded.view(*x.shape[:-1], padded.shape[-1] // BLOCK, BLOCK)


def _sums(numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The sum of products in each block: float32 [N, outputs, blocks]."""
    return torch.einsum("nbi,obi->nob", numbers.double(), codes.double()).float()


def _powers(weight: QuantisedWeight) -> torch.Tensor:
    """The scales of mxfp4: float32 [outputs, blocks]."""
    bytes_ = weight.scales.transpose(1, 2).flatten(0, 1)[: weight.shape[0]]
    return ((bytes_.to(torch.int32)) << 23).view(torch.float32)


def _scaled(numbers: torch.Tensor, scales: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    codes = _blocks(codes_of(weight).to(torch.int32))
    mxfp4 = weight.format.name == "mxfp4"
    if mxfp4:  # twice the values, which are whole numbers
        codes = (2 * torch.where(codes < 8, _E2M1[codes % 8], -_E2M1[codes % 8])).to(torch.int32)
    sums = _sums(numbers, codes)
    each = scales[:, None, :].expand_as(sums)
    if mxfp4:
        each = each * (_powers(weight) * 0.5)  # exact
    out = torch.zeros(sums.shape[:2])
    for block in range(sums.shape[2]):
        out = fused(sums[..., block], each[..., block], out)
    return out if mxfp4 else out * weight.scales[: weight.shape[0]]


def _grouped(numbers: torch.Tensor, scales: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    sums = _sums(numbers, _blocks(codes_of(weight)))
    inputs = scales * numbers.sum(-1).float()
    group, zero = weight.scales.float().transpose(1, 2).flatten(0, 1)[: weight.shape[0]].unbind(-1)
    each = weight.format.group // BLOCK
    out = torch.zeros(sums.shape[:2])
    for index in range(group.shape[1]):
        products, total = torch.zeros(sums.shape[:2]), torch.zeros(len(numbers))
        for block in range(index * each, min((index + 1) * each, sums.shape[2])):
            products = fused(sums[..., block], scales[:, block, None].expand_as(products), products)
            total = total + inputs[:, block]
        part = fused(-zero[:, index].expand_as(out), total[:, None].expand_as(out), products)
        out = fused(group[:, index].expand_as(out), part, out)
    return out


def linear_fp32(x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """mxfp4 with unrounded inputs. In each block, products are added one after the other to 0; the sum times the
    block's scale is added to the result. Each step is rounded once. x: float32 [N, K]; bias: float32 [M]."""
    with flushed():
        codes = _blocks(codes_of(weight).to(torch.int32))
        values = torch.where(codes < 8, _E2M1[codes % 8], -_E2M1[codes % 8])
        blocks = _blocks(x)
        powers = _powers(weight)
        out = torch.zeros(len(x), weight.shape[0])
        for block in range(blocks.shape[1]):
            sums = torch.zeros_like(out)
            for i in range(BLOCK):
                sums = fused(values[:, block, i].expand_as(out), blocks[:, block, i, None].expand_as(out), sums)
            out = fused(sums, powers[:, block].expand_as(out), out)
        return out if bias is None else out + bias


def code_places(keys: torch.Tensor, values: torch.Tensor) -> tuple[QuantisedWeight, QuantisedWeight]:
    """The keys and values of one key head at `PLACES` positions, [PLACES, head_dim] each, in int8.

    Keys are coded as a weight of a linear layer whose outputs are positions: each key has a scale. Values are coded as
    a weight whose inputs are positions: each number of a head has a scale for all of them.
    """
    int8 = FORMATS["int8"]
    return quantise(keys, int8, name="keys"), quantise(values.T.contiguous(), int8, name="values")


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: int) -> torch.Tensor:
    """Attention of one row over the positions from 0 on, of which the first `blocks` times `PLACES` are in int8.

    query: float32 [heads, head_dim]; keys, values: [seen, kv_heads, head_dim], in the cache's format. What a block in
    int8 gives: `linear_int8` makes scores of queries and keys; the softmax is that of `reference.attention`, and its
    exponentials are not rounded; `linear_int8` weighs the values with them. Returns [heads, head_dim].
    """
    with flushed():
        coded = (
            _coded_part(query, keys[start : start + PLACES], values[start : start + PLACES])
            for start in range(0, blocks * PLACES, PLACES)
        )
        first = blocks * PLACES
        rest = reference.attention_parts(query, keys[first:], values[first:], first)
        return reference.joined((*coded, *rest))


def _coded_part(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> reference.Part:
    group = len(query) // keys.shape[1]
    found: list[reference.Part] = []
    for head, queries in enumerate(torch.split(query, group)):
        its_keys, its_values = code_places(keys[:, head], values[:, head])
        scores = linear_int8(queries, its_keys)
        top, weights, total = reference.softmax(scores * reference.score_scale(query.shape[1]))
        found.append((top, total, linear_int8(weights, its_values)))
    top, total, out = (torch.cat(each) for each in zip(*found, strict=True))
    return top, total, out
