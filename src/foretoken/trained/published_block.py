"""A published DFlash: a few layers that fill a block of places in one pass.

The rows of the pass are the last token of the text and blanks behind it: the embedding of one certain token, the mask.
Each row sees the whole block, and what the target has computed for the text: a vector for each token, of states of some
layers, from which every layer makes keys and values of its own. So a text's keys and values take no pass.

Source: Chen, Liang and Liu 2026, "DFlash: block diffusion for flash speculative decoding" (2602.06036), and the code
that its authors published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.decoder.config import DecoderConfig
from foretoken.errors import CheckpointError, UnsupportedModelError, quoted
from foretoken.trained.published import Publication, PublishedConfig

DFLASH = "dflash"
_MOST = 64  # places in a block: those that are published have up to 16
_NOT_SERVED = ("is_causal", "final_logit_softcapping", "conv_kernel_size", "selector_rank", "sliding_window_non_causal")
_FACTORS = ("input_embedding_scale", "output_multiplier")


@dataclass(frozen=True)
class PublishedBlock(PublishedConfig):
    """block: rows of a pass: the last token and the blanks. mask: the token whose embedding a blank has. from_last: the
    row of the last token says what follows it, as in an ordinary decoder. Otherwise the row of a blank says what its
    own place holds, and the row of the last token says nothing. target_layers: the target's, 0 if it does not say."""

    block: int
    mask: int
    from_last: bool

    methods = (DFLASH,)

    @property
    def drafts(self) -> int:
        """The tokens of a draft."""
        return self.block if self.from_last else self.block - 1

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """As `PublishedConfig.expect_suits`; the mask must be a token of the target's, too."""
        super().expect_suits(target, where)
        if self.target_layers not in (0, target.num_layers):
            raise CheckpointError(
                f"{where} was trained for a model of {self.target_layers} layers, and this one has "
                f"{target.num_layers}; name a drafter of this model"
            )
        if self.mask >= target.vocab_size:
            raise CheckpointError(
                f"{where} fills places of token {self.mask}, and the model has {target.vocab_size}; name a drafter of "
                "this model"
            )
        if self.sees[-1] == target.num_layers:
            raise UnsupportedModelError(
                f"{where} sees what the model's last layer puts out, which is not supported for drafters of its kind; "
                "use another drafter of this model"
            )

    @property
    def beside(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """As `PublishedConfig.beside`."""
        width = self.hidden_size
        return {
            "reduction.weight": ("fc.weight", (width, self.reduced_from * width)),
            "seen_norm.weight": ("hidden_norm.weight", (width,)),
        }


def block_from(folder: Path, raw: Mapping[str, Any]) -> PublishedBlock:
    """The sizes of a DFlash in a folder. Raises CheckpointError for one that is damaged, and UnsupportedModelError for
    one that computes something else."""
    its = Publication.of(folder, raw, "dflash_config")
    its.refuse(_NOT_SERVED)
    for name in _FACTORS:
        if its.value(name) not in (None, 1, 1.0):
            raise UnsupportedModelError(
                f"{folder} has {name} {quoted(its.value(name), 20)}, and 1 is supported; use another drafter"
            )
    own, block = its.layers(), its.number("block_size", _MOST)
    mask, reduced = its.value("mask_token_id"), "d2t" in its.names
    if type(mask) is not int or mask < 0:
        raise CheckpointError(
            f"{folder}: mask_token_id is {quoted(mask, 40)}, expected the number of a token; fetch it again"
        )
    # its authors number layers by their outputs, and speculators by their inputs
    by_outputs = its.layers_seen("target_layer_ids")
    sees = tuple(at + 1 for at in by_outputs) or its.layers_seen("aux_hidden_state_layer_ids")
    if not sees:
        raise CheckpointError(
            f"{folder} does not say which layers of the model it sees (target_layer_ids); use a newer version of it"
        )
    from_last = its.switch("sample_from_anchor")
    if block == 1 and not from_last:
        raise CheckpointError(f"{folder}: block_size is 1, which leaves no place to fill; fetch it again")
    of_target = its.value("num_target_layers")
    count = 0 if of_target is None else its.number("num_target_layers", 10_000)
    made = PublishedBlock(
        *(DFLASH, "", count, 0, own.head_dim, own.hidden_size, own.num_heads),
        own=own,
        sees=sees,
        choices=its.choices(own.vocab_size),
        are_all=not reduced,
        own_head=reduced,
        own_embedding=False,
        target=its.target,
        block=block,
        mask=mask,
        from_last=from_last,
    )
    its.expect_known(made)
    return made
