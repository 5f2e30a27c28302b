"""A published EAGLE-3: one layer or more, whose first attention reads two states side by side.

Unlike in the paper's text, these are the normed embedding of a token, and the normed state of the row before. The
drafter has an output layer and a final norm of its own. Its first row is that of a text's second token: nothing comes
before the first.

Source: Li et al. 2025, "EAGLE-3", and the code that its authors published with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from foretoken.decoder.config import DecoderConfig
from foretoken.errors import CheckpointError, UnsupportedModelError
from foretoken.trained.config import EAGLE3
from foretoken.trained.published import Publication, PublishedConfig

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_USUAL = 3  # layers are seen, if it does not say which: the third, the middle one, the last but three
_FEWEST = 7  # layers of a model in which these three are in order


@dataclass(frozen=True)
class PublishedEagle(PublishedConfig):
    """residual_normed: what a layer adds to is the normed state. norms: of what is seen of the target, before it is
    reduced: "", "all" (one norm for all of it) or "each" (one for each layer). hands_on_normed: a row's state is what
    the final norm makes of it. by_outputs: layers that are seen are numbered by their outputs. The others are
    `PublishedConfig`'s; if it does not say which layers it sees, none are named until a target is known."""

    residual_normed: bool
    norms: str
    hands_on_normed: bool
    by_outputs: bool
    resolved: bool = False  # layers are named by their inputs, once and for all

    methods = (EAGLE3,)

    @property
    def follows(self) -> bool:
        """Each row needs the state of the row before."""
        return True

    @property
    def reduced_from(self) -> int:
        """How many layers of the target are seen."""
        return len(self.sees) or _USUAL

    def of_target(self, target: DecoderConfig) -> Self:
        """The same, with the layers that it sees named by their inputs. SGLang numbers layers by their outputs, vLLM
        by their inputs, and drafters are converted from the one layout to the other as they are. So the usual three are
        recognised in either way; of others, the layout decides, unless that would name a layer beyond the last."""
        if self.resolved:
            return self
        count = target.num_layers
        usual = (2, count // 2, count - 3)
        others = tuple(at + 1 for at in self.sees)
        if not self.sees or others == usual or self.sees == usual:
            return replace(self, sees=usual, resolved=True)
        by_outputs = self.by_outputs and others[-1] <= count
        return replace(self, sees=others if by_outputs else self.sees, resolved=True)

    def expect_suits(self, target: DecoderConfig, where: str) -> None:
        """As `PublishedConfig.expect_suits`; a model must have the usual layers, if no others are named."""
        if not self.sees and target.num_layers < _FEWEST:
            raise CheckpointError(
                f"{where} does not say which layers of the model it sees, and the usual three are those of a model of "
                f"{_FEWEST} layers or more, and this one has {target.num_layers}; name a drafter of this model"
            )
        super().expect_suits(target, where)

    @property
    def beside(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """As `PublishedConfig.beside`."""
        width, count = self.hidden_size, self.reduced_from
        found: dict[str, tuple[str, tuple[int, ...]]] = {
            "reduction.weight": ("fc.weight", (width, count * width)),
            "embedded_norm.weight": ("layers.0.input_layernorm.weight", (width,)),
            "seen_norm.weight": ("layers.0.hidden_norm.weight", (width,)),
        }
        if self.norms == "all":
            found["seen.weight"] = ("input_norm.weight", (count * width,))
        if self.norms == "each":
            found |= {f"seen{at}.weight": (f"fc_norm.{at}.weight", (width,)) for at in range(count)}
        return found


def eagle_from(folder: Path, raw: Mapping[str, Any]) -> PublishedEagle:
    """The sizes of an EAGLE-3 in a folder. Raises CheckpointError for one that is damaged, and UnsupportedModelError
    for one that computes something else."""
    its = Publication.of(folder, raw, "eagle_config")
    its.refuse(("use_mtp_layernorm", "parallel_drafting"))
    if its.value("use_aux_hidden_state") is False:
        raise UnsupportedModelError(
            f"{folder} sees one state of the model; supported are drafters that see states of several layers"
        )
    own, reduced, has_head = its.layers(wide=True), "d2t" in its.names, "model.lm_head.weight" in its.names
    one, each = its.switch("norm_before_fc"), its.switch("fc_norm")
    if one and each:
        raise CheckpointError(f"{folder}: both norm_before_fc and fc_norm are on, expected one of them; fetch it again")
    made = PublishedEagle(
        *(EAGLE3, "", 0, 0, own.head_dim, own.hidden_size, own.num_heads),
        own=own,
        sees=its.layers_seen(_LAYERS),
        choices=its.choices(own.vocab_size),
        are_all=not reduced,
        own_head=reduced or has_head,
        own_embedding="model.embed_tokens.weight" in its.names,
        target=its.target,
        residual_normed=its.switch("norm_before_residual"),
        norms="all" if one else "each" if each else "",
        hands_on_normed=its.switch("norm_output"),
        by_outputs=not its.is_of_speculators,
    )
    its.expect_known(made)
    return made
