"""The recipe of fractal drafts: reads their options, and makes the drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from foretoken.decoder.config import read_config
from foretoken.drafters.decoders import DecoderRecipe, expect_layers, format_asked
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.recipe import Context, Level
from foretoken.drafters.table import DrafterEntry
from foretoken.errors import DraftSpecError
from foretoken.settings.load import MOST_DRAFT_TOKENS


class FractalRecipe(DecoderRecipe):
    """A fractal draft runs in the model's own layers. So nothing can speed it up, and it drafts for the model only."""

    def level(self, name: str, entry: DrafterEntry, options: dict[str, Any]) -> Level:
        """The level for these options."""
        format = format_asked(name, {"format": "int8", **options})
        return Level(name, entry, options, MOST_DRAFT_TOKENS, format, is_copy=True)

    def found(self, level: Level, folder: Path) -> Level:
        """The level, completed from the number of the model's layers."""
        return embedded(level, read_config(folder).num_layers)

    def make(self, level: Level, context: Context) -> FractalDrafter:
        """Make the drafter."""
        loaded, common = self.loaded(level, context)
        kind = PublishedFractalDrafter if context.faithful or context.independent else FractalDrafter
        return kind(
            loaded.decoder,
            context.guessing,
            target=context.target,
            layers=level.options["layers"],
            window=level.options["w"],
            slots=level.options.get("slots", "lookup"),
            **common,
        )

    def speeding_up(self, level: Level, above: Level, spec: str) -> Level:
        """Raises DraftSpecError: it drafts for the model only."""
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' runs in the model's own layers, so it drafts for the model alone; leave "
            f"{above.name!r} out"
        )

    def sped_up(self, level: Level, below: Level, spec: str) -> Level:
        """Raises DraftSpecError: it guesses all its tokens at once."""
        advice = "; slots=lookup starts from what lookup finds" if below.name == "lookup" else ""
        raise DraftSpecError(
            f"draft {spec!r}: 'fractal' guesses all its tokens at once and cannot be sped up by {below.name!r}{advice}"
        )


def embedded(level: Level, num_layers: int) -> Level:
    """A fractal level with its defaults filled in. The copy is embedded before a quarter of the layers, evenly spaced,
    and the window has as many tokens (FractalLLM, appendix D). Raises DraftSpecError for options that do not fit the
    model."""
    n, layers = level.options.get("n"), level.options.get("layers")
    called = f"draft {level.name!r}"
    if layers is None:
        n = max(1, num_layers // 4) if n is None else n
        if n > num_layers:
            raise DraftSpecError(
                f"{called}: n is {n}, and the model has {num_layers} layers; give at most {num_layers}"
            )
        layers = tuple(num_layers * at // n - 1 for at in range(1, n + 1))
    else:
        expect_layers(level, "layers", num_layers)
        if n not in (None, len(layers)):
            raise DraftSpecError(f"{called}: n is {n}, and layers names {len(layers)}; leave one of them out")
    window = level.options.get("w", len(layers))
    most = window + len(layers) + 1
    if most > MOST_DRAFT_TOKENS:
        raise DraftSpecError(
            f"{called} is to draft {most} tokens a round, expected at most {MOST_DRAFT_TOKENS}; give a smaller w"
        )
    return replace(
        level,
        options={**level.options, "n": len(layers), "layers": layers, "w": window},
        tokens=min(level.tokens, most),
    )


RECIPE = FractalRecipe()
