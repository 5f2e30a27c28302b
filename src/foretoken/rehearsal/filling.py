"""Fills a tensor of a rehearsal: the small model's rows in their places, random numbers, and zeros."""

from __future__ import annotations

import torch

from foretoken.rehearsal.fit import NOISE, Placed
from foretoken.rehearsal.noise import Noise


def filled(
    name: str, placed: Placed, source: torch.Tensor | None, like: torch.Tensor, noise: Noise, first: int, stop: int
) -> torch.Tensor:
    """Rows `first` to `stop` of a tensor, in `like`'s type. name: the tensor's. source: the small tensor, if `placed`
    takes rows of one. like: also gives the spread of random numbers."""
    rows = placed.rows[first:stop]
    if placed.columns is None:
        return _gathered(source, placed, rows, like.dtype)
    columns = len(placed.columns)
    random = rows == NOISE
    if bool(random.any()):
        piece = noise.rows(name, first, len(rows), columns, like).to(like.dtype)
        piece[~random] = _gathered(source, placed, rows[~random], like.dtype)
    else:
        piece = _gathered(source, placed, rows, like.dtype)
    return torch.where(piece == 0, noise.zeros(name, first, len(rows), columns, like.dtype), piece)


def _gathered(source: torch.Tensor | None, placed: Placed, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows of the small tensor in their places, and silence elsewhere."""
    width = () if placed.columns is None else (len(placed.columns),)
    piece = torch.full((len(rows), *width), placed.silence, dtype=dtype)
    real = rows >= 0
    if source is None or not bool(real.any()):
        return piece
    taken = source[rows[real]]
    if placed.scale != 1:
        taken = taken.float() * placed.scale
    taken = taken.to(dtype)
    if placed.columns is None:
        piece[real] = taken
        return piece
    there = placed.columns >= 0
    wide = torch.zeros((len(taken), *width), dtype=dtype)
    wide[:, there] = taken[:, placed.columns[there]]
    if len(wide) == len(rows):
        return wide
    piece[real] = wide
    return piece
