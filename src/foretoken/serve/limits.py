"""How much a server takes on at once, and the memory that it may need for it."""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.api.model import Model
from foretoken.api.pacing import first_price
from foretoken.common.limits import memory_left
from foretoken.decoder.decoder import Decoder
from foretoken.errors import SettingError
from foretoken.protocol.types import Request

_ROWS = 8  # of drafts and their roots in a usual pass
_SLOWER = 2.8  # times as long as such a pass, at most, is one that reads a part of a prompt as well
_UNPRICED = 16  # rows of prompts in such a pass where passes are too slow to be timed at the start


@dataclass(frozen=True)
class Limits:
    """sequences: the most texts that are generated at once. waiting: the most requests that wait for their turn.
    context: the most tokens of prompt and output together. positions: of keys and values, those of all texts under way
    and those that are kept for later requests; None: no limit. max_tokens: of a chat's answer whose request names none.
    body: the most bytes of a request. beside_rows: as in `Schedule`.
    """

    sequences: int = 32
    waiting: int = 256
    context: int = 4096
    positions: int | None = None
    max_tokens: int = 4096
    body: int = 16 * 1024**2
    beside_rows: int | None = None

    @classmethod
    def of(cls, model: Model, sequences: int, waiting: int, context: int | None) -> Limits:
        """The limits for a model on this machine, with as many positions as fit into half of the memory that is left.
        context: the most tokens of a text, if fewer than the model's own."""
        own = model.context_length
        if context is not None and context > own:
            raise SettingError(f"--max-model-len is {context}, and the model's context has {own}; give at most that")
        context = own if context is None else context
        positions: int | None = None
        if model.settings.memory is not None:  # it was planned with one text's keys and values
            positions = own
        elif model.is_here and (left := memory_left()) is not None:
            positions = max(context, left // 2 // _bytes_of_position(model.target))
        return cls(sequences, waiting, context, positions, beside_rows=_beside_rows(model))

    def needed(self, request: Request) -> int:
        """How many positions a text may need, at most."""
        return min(self.context, len(request.prompt) + request.max_new_tokens)


def _bytes_of_position(target: Decoder) -> int:
    """The bytes of the keys and values of a position."""
    c = target.config
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * target.weights.embedding.element_size()


def _beside_rows(model: Model) -> int | None:
    """How many rows of prompts a pass may read while other texts wait for it."""
    if not model.is_here or model.target.device.type != "cpu":
        return None
    price, most = first_price(model.target), model.settings.prefill_chunk
    if price is None:
        return min(_UNPRICED, most)
    allowed = _SLOWER * price.of(_ROWS)
    return max([1, *(rows for rows in range(1, most + 1) if price.of(_ROWS + rows) <= allowed)])
