"""The fractal draft as it was published, for comparison, and for the rejection rule.

Every guess is made anew at every fractal layer, and the pass goes on to the end even if a guess has settled. The
rejection rule needs this, too: whether a guess has settled depends on tokens behind those that are judged.

Source: FractalLLM (Kim et al. 2025), section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.drafters.fractal import FractalDrafter, FractalPass


class PublishedFractalDrafter(FractalDrafter):
    """A fractal drafter that leaves nothing out."""

    def _has_settled(self, made: FractalPass, before: Sequence[int], right: int, most: int) -> bool:
        return False

    def _known(self, right: int) -> int:
        return 0
