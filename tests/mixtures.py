"""Trained drafters with random weights, for targets of any size."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from foretoken.decoder.decoder import Decoder
from foretoken.trained.blocks import BlockDecoder
from foretoken.trained.config import StackConfig, TrainedConfig
from foretoken.trained.files import Trained
from foretoken.trained.following import FollowingDecoder
from foretoken.trained.network import Block, Mixture, Stack
from foretoken.trained.observer import ObservingLayers
from foretoken.trained.sizes import block_of, eagle2_for, eagle3_for, independent_for, mixture_for
from tests.published import published_decoder


def random_mixture(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, inferred: int = 0
) -> tuple[Mixture, Trained]:
    """A network and what its folder would hold. With a small scale it repeats what the token alone suggests."""
    config = mixture_for(target.config, "a model", inferred=inferred)
    config = config if inferred else replace(config, kv_heads=1)
    torch.manual_seed(seed)
    network = Mixture(config, target.config.norm_eps)
    return network, _random(network, config, scale)


def random_block(target: Decoder, seed: int = 0, scale: float = 0.02, *, inferred: int = 0) -> tuple[Block, Trained]:
    """The same for one that drafts four tokens in a pass."""
    usual = mixture_for(target.config, "a model", inferred=inferred)
    config = block_of(usual, block=4, depth=3)
    config = config if inferred else replace(config, kv_heads=1)
    torch.manual_seed(seed)
    network = Block(config, target.config.norm_eps)
    return network, _random(network, config, scale)


def random_stack(target: Decoder, method: str, seed: int = 0, scale: float = 0.02) -> tuple[Stack, Trained]:
    """The same for a stack."""
    sizes = {"eagle2": eagle2_for, "eagle3": eagle3_for, "independent": independent_for}
    config = sizes[method](target.config, "a model")
    assert isinstance(config, StackConfig)
    torch.manual_seed(seed)
    network = Stack(config, target.config.norm_eps)
    return network, _random(network, config, scale)


def _random(network: nn.Module, config: TrainedConfig, scale: float) -> Trained:
    network.eval().requires_grad_(requires_grad=False)
    for name, parameter in network.named_parameters():
        if name == "combination.weight":  # it hands the embedding on
            width = config.hidden_size
            parameter[:, :width] = torch.eye(width)
            parameter[:, width:].normal_(std=scale)
        elif parameter.ndim == 2:
            parameter.normal_(std=scale)
        # as its file has it, so that the decoder made of it computes the same
        parameter.copy_(parameter.to(torch.bfloat16))
    return Trained(config, network.state_dict())


def decoder_and_observer(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, inferred: int = 0
) -> tuple[Decoder, ObservingLayers]:
    """The parts of which a Mixture of Attentions for a target is made."""
    _, trained = random_mixture(target, seed, scale, inferred=inferred)
    config, weights = trained.weights(target)
    return Decoder(config, weights, arithmetic=target.arithmetic, threads=1), _observer(trained, target)


def block_and_observer(
    target: Decoder, seed: int = 0, scale: float = 0.02, *, inferred: int = 0
) -> tuple[BlockDecoder, ObservingLayers]:
    """The parts of one that drafts four tokens in a pass."""
    _, trained = random_block(target, seed, scale, inferred=inferred)
    config, weights = trained.weights(target)
    return BlockDecoder(config, weights, trained, arithmetic=target.arithmetic, threads=1), _observer(trained, target)


def _observer(trained: Trained, target: Decoder) -> ObservingLayers:
    observer = trained.observer(target)
    assert observer is not None
    return observer


def following_decoder(target: Decoder, method: str, seed: int = 0, scale: float = 0.02) -> FollowingDecoder:
    """The decoder of an EAGLE for a target."""
    if method == "published":
        return published_decoder(target, seed, scale)
    _, trained = random_stack(target, method, seed, scale)
    config, weights = trained.weights(target)
    return FollowingDecoder(config, weights, trained, arithmetic=target.arithmetic, threads=1)
