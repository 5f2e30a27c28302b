"""How much a server takes on at once, and the memory that it may need for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretoken.api.model import Model
from foretoken.common.limits import memory_left
from foretoken.decoder.decoder import Decoder
from foretoken.errors import SettingError
from foretoken.protocol.types import Request


@dataclass(frozen=True)
class Limits:
    """sequences: the most texts that are generated at once. waiting: the most requests that wait for their turn.
    context: the most tokens of prompt and output together. positions: of keys and values, those of all texts under way
    and those that are kept for later requests; None: no limit. max_tokens: of a chat's answer whose request names none.
    body: the most bytes of a request. prefixes: whether what was read is kept for requests that begin alike.
    """

    sequences: int = 32
    waiting: int = 256
    context: int = 4096
    positions: int | None = None
    max_tokens: int = 4096
    body: int = 16 * 1024**2
    prefixes: bool = True

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
        elif model.is_here and (left := _memory_left(model.target)) is not None:
            each = model.target.config.bytes_of_position(model.target.weights.embedding.element_size())
            if any(decoder.codes_places for decoder in model.decoders.values()):  # drafts keep them in int8, too
                each = each * 3 // 2
            positions = max(context, left // 2 // each)
        return cls(sequences, waiting, context, positions)

    def needed(self, request: Request) -> int:
        """How many positions a text may need, at most."""
        return min(self.context, len(request.prompt) + request.max_new_tokens)


def _memory_left(target: Decoder) -> int | None:
    """The bytes that are free where keys and values lie; None if that is not known."""
    if target.device.type == "cpu":
        return memory_left()
    free, _ = torch.cuda.mem_get_info(target.device)
    return int(free)
