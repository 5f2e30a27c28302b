"""Windows of text for training a drafter, and how far each row sees what the target has computed.

All is drawn from the seed and the number of the step, so a training that is resumed goes on with the same windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SEGMENTS = (5, 15)  # tokens of a segment: least and most (Zimmer et al. 2025, section 3.3)
_SHORTEST_PROMPT = 16
_KNOWN = 4  # tokens before the blanks of a segment, at most: in use there is one, or a guess of another draft


@dataclass(frozen=True)
class Batch:
    """Some windows. tokens, bounds, distances: int [B, T]. A row's bound is the last position of the target's that it
    sees; its distance is how far it lies behind the bound, from 1 up. judged: bool [B, T], the rows that count. roots:
    int [B, T], the last position whose token a row knows, its own in most cases; rows behind it are blanks of a draft
    that is made in one pass."""

    tokens: torch.Tensor
    bounds: torch.Tensor
    judged: torch.Tensor
    roots: torch.Tensor

    @property
    def distances(self) -> torch.Tensor:
        """How far rows lie behind their bounds."""
        return torch.arange(self.bounds.shape[1], device=self.bounds.device) - self.bounds

    def on(self, device: torch.device) -> Batch:
        """The same windows in a device's memory."""
        return Batch(self.tokens.to(device), self.bounds.to(device), self.judged.to(device), self.roots.to(device))


def _start(tokens: int, length: int, seed: int, number: int) -> int:
    """Where a window begins, by its number. Windows lie side by side and are taken in random order. So all of the text
    is read before any of it is read again, but for the rest that fills no window. The next time they lie elsewhere."""
    windows = tokens // length
    again, place = divmod(number, windows)
    chance = torch.Generator().manual_seed(1_000_003 * seed + 500_009 * (again + 1))
    first = int(torch.randint(tokens, (), generator=chance))
    return first + length * int(torch.randperm(windows, generator=chance)[place])


def draw(stream: torch.Tensor, length: int, count: int, *, seed: int, step: int, block: int = 1) -> Batch:
    """`count` windows of `length` tokens of a stream. In each the first tokens are a prompt, whose rows see all that
    lies before them, as while the target reads. The rest is cut into segments: rows of a segment see what lies before
    it, as in a draft that was begun there. block: how many tokens a pass drafts; then a segment is made of a few tokens
    that are known, and of `block` - 1 blanks."""
    chance = torch.Generator().manual_seed(1_000_003 * seed + step)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=chance))

    starts = [_start(len(stream), length, seed, step * count + window) for window in range(count)]
    bounds, judged = torch.empty((count, length), dtype=torch.long), torch.zeros((count, length), dtype=torch.bool)
    roots = torch.arange(length).repeat(count, 1)
    for window in range(count):
        prompt = between(min(_SHORTEST_PROMPT, length // 2), length // 2)
        bounds[window, :prompt] = torch.arange(prompt) - 1
        judged[window, prompt:] = True
        at = prompt
        while at < length:
            known = between(*SEGMENTS) if block == 1 else between(1, _KNOWN)
            stop = min(length, at + known + block - 1)
            bounds[window, at:stop] = at - 1
            roots[window, at + known : stop] = at + known - 1
            at = stop
    places = (torch.tensor(starts)[:, None] + torch.arange(length)) % len(stream)  # behind its end comes its beginning
    return Batch(stream[places], bounds, judged, roots)
