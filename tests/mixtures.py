"""Mixtures of Attentions with random weights, for targets of any size."""

from __future__ import annotations

from dataclasses import replace

import torch

from foretoken.decoder.decoder import Decoder
from foretoken.trained.config import sized_for
from foretoken.trained.files import Trained
from foretoken.trained.network import Mixture
from foretoken.trained.observer import ObservingLayers


def random_mixture(target: Decoder, seed: int = 0, scale: float = 0.02) -> tuple[Mixture, Trained]:
    """A network and what its folder would hold. With a small scale it repeats what the token alone suggests."""
    torch.manual_seed(seed)
    config = replace(sized_for(target.config, "a model"), kv_heads=1)
    network = Mixture(config, target.config.norm_eps).eval().requires_grad_(requires_grad=False)
    for parameter in network.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=scale)
            # as its file has it, so that the decoder made of it computes the same
        parameter.copy_(parameter.to(torch.bfloat16))
    return network, Trained(config, network.state_dict())


def decoder_and_observer(target: Decoder, seed: int = 0, scale: float = 0.02) -> tuple[Decoder, ObservingLayers]:
    """The parts of which a drafter for a target is made."""
    _, trained = random_mixture(target, seed, scale)
    config, weights = trained.weights(target)
    return Decoder(config, weights, arithmetic=target.arithmetic, threads=1), trained.observer(target)
