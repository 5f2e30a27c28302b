"""Rotary positions: a table of cosines and sines by position.

A row's entry depends on its position alone. The table is computed in pages of fixed size, so that a growing table never
changes a bit of an earlier entry. (A vectorised cosine may differ from a scalar cosine in the last place, and the size
of a tensor decides which of the two an element gets.)

Pages are computed in numpy. PyTorch would divide a large page among threads that a forked child does not have, and
would wait for ever.

Sources: linear, Chen et al. 2023; dynamic NTK and YaRN, Peng et al. 2023 (arXiv 2309.00071); llama3, Llama 3.1.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import torch

from foretoken.decoder.config import RopeConfig

PAGE = 256  # positions
_ALONE = 32_767  # numbers; PyTorch divides an operation on more among its threads

Doubles = npt.NDArray[np.float64]


class RopeTable:
    """cos and sin of every position, computed on demand a page at a time."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._config = config
        self._head_dim = head_dim
        self._device = device
        self._scale = yarn_scale(config) if config.type == "yarn" else 1.0
        self._pages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._places: dict[int, tuple[int, int]] = {}  # the addresses of pages

    def __call__(self, positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin: float32 [len(positions), head_dim / 2]."""
        pages = [self._page(p // PAGE) for p in positions]
        cos = torch.stack([page[0][p % PAGE] for page, p in zip(pages, positions, strict=True)])
        sin = torch.stack([page[1][p % PAGE] for page, p in zip(pages, positions, strict=True)])
        return cos, sin

    def upto(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin of the first `count` positions, or some more: float32 [at least count, head_dim / 2]."""
        pages = [self._page(number) for number in range(-(-count // PAGE))]
        return torch.cat([page[0] for page in pages]), torch.cat([page[1] for page in pages])

    def addresses(self, positions: list[int]) -> tuple[list[int], list[int]]:
        """The addresses of the cosines and sines of some positions: float32 [head_dim / 2] each."""
        row = 4 * (self._head_dim // 2)
        cosines, sines = [], []
        for p in positions:
            cos, sin = self._places.get(p // PAGE) or self._place(p // PAGE)
            cosines.append(cos + p % PAGE * row)
            sines.append(sin + p % PAGE * row)
        return cosines, sines

    def _place(self, number: int) -> tuple[int, int]:
        cos, sin = self._page(number)
        place = self._places[number] = (cos.data_ptr(), sin.data_ptr())
        return place

    def _page(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        page = self._pages.get(number)
        if page is None:
            cos, sin = (torch.from_numpy(table) for table in self._computed(number))
            # the first page stays: another thread's pass may hold its address
            page = self._pages.setdefault(number, (cos.to(self._device), sin.to(self._device)))
        return page

    def _computed(self, number: int) -> list[npt.NDArray[np.float32]]:
        """Cosines and sines of a page: float32 [PAGE, head_dim / 2] each."""
        positions = torch.arange(number * PAGE, (number + 1) * PAGE)
        frequencies = inverse_frequencies(self._config, self._head_dim, positions).numpy()
        with np.errstate(all="ignore"):  # numpy's warnings about a senseless configuration help nobody
            angles = positions.numpy().astype(np.float32)[:, None] * frequencies
            return [(table * self._scale).astype(np.float32) for table in cosine_and_sine(angles.astype(np.float64))]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads. x: float32 [rows, heads, head_dim], i paired with i + head_dim/2; cos, sin: [rows, head_dim/2]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def cosine_and_sine(x: Doubles) -> tuple[Doubles, Doubles]:
    """Cosines and sines of float64 angles up to a million or so, to within 1e-15, by sums and products alone.

    The functions of libraries differ in the last place between machines, and so would every bit of a model's output.
    """
    quarters = np.rint(x * (2 / math.pi))
    # pi / 2 in three parts; the parts of 33 bits are subtracted exactly
    r = x - quarters * 1.5707963267341256 - quarters * 6.077100506303966e-11 - quarters * 2.0222662487959506e-21
    square = r * r
    sine, cosine = np.zeros_like(r), np.zeros_like(r)
    for n in range(9, -1, -1):  # Taylor's series, |r| <= pi / 4
        sine = sine * square + (-1) ** n / math.factorial(2 * n + 1)
        cosine = cosine * square + (-1) ** n / math.factorial(2 * n)
    sine = sine * r
    turn = quarters.astype(np.int64) % 4
    across = turn % 2 == 1
    return (
        np.where(across, sine, cosine) * np.where((turn == 1) | (turn == 2), -1.0, 1.0),
        np.where(across, cosine, sine) * np.where(turn >= 2, -1.0, 1.0),
    )


def _powers(theta: float, head_dim: int) -> torch.Tensor:
    """theta to the power of -2 i / head_dim: float64, rounded from 30 digits, the same on every machine."""
    with localcontext(prec=30):
        powers = [float(Decimal(theta) ** (Decimal(-i) / head_dim)) for i in range(0, head_dim, 2)]
    return torch.tensor(powers, dtype=torch.double)


def inverse_frequencies(config: RopeConfig, head_dim: int, positions: torch.Tensor) -> torch.Tensor:
    """Radians per position: float32 [1 or len(positions), head_dim / 2].

    Computed in float64 and rounded once. In float32, the vector libraries of two machines may differ in the last place
    of a power, and then in everything that follows.
    """
    if config.type == "dynamic":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.double) / head_dim
        # the base grows with the row's own position, not with the longest row in the pass: rows stay independent
        length = (positions + 1).clamp(min=config.original).double()
        stretch = (config.factor * length / config.original - (config.factor - 1)) ** (head_dim / (head_dim - 2))
        few = max(1, _ALONE // len(exponents))  # rows at a time; each row is computed separately
        bases = (config.theta * stretch)[:, None]
        rows = [1.0 / (bases[at : at + few] ** exponents) for at in range(0, len(bases), few)]
        return torch.from_numpy(np.concatenate(rows, dtype=np.float32, casting="same_kind"))
    plain = _powers(config.theta, head_dim)
    if config.type == "linear":
        plain = plain / config.factor
    elif config.type == "llama3":
        plain = _llama3(plain, config)
    elif config.type == "yarn":
        plain = _yarn(plain, config, head_dim)
    return plain[None].float()


def _llama3(plain: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Long waves are slowed down by the factor, short waves are kept, and waves between are blended."""
    turns = config.original * plain / (2 * math.pi)  # how often a wave fits into the original context
    keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    keep = keep.clamp(0, 1)
    return plain * (keep + (1 - keep) / config.factor)


def _yarn(plain: torch.Tensor, config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Fast dimensions are kept, slow dimensions are slowed down by the factor, with a linear ramp between."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(config.original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    slow = ((torch.arange(head_dim // 2, dtype=torch.double) - low) / (high - low)).clamp(0, 1)
    return plain / config.factor * slow + plain * (1 - slow)


def yarn_scale(config: RopeConfig) -> float:
    """YaRN's factor on cos and sin, which acts as a temperature on the attention's logits."""

    def mscale(weight: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * weight * math.log(config.factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return mscale(config.mscale) / mscale(config.mscale_all_dim)
    return mscale(1.0)
