"""The parts of Mixture of Attentions with the drafter on a client and the model on a host: tables 3, 4 and 7, appendix
A.6."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from foretoken.bench import cut_off, private, remote
from foretoken.bench.reproduce import moa_reported as reported
from foretoken.bench.reproduce.asked import checkpoint
from foretoken.bench.reproduce.moa_heads import ALL, CHAIN, HEADS, TREE, head, is_real, subject_of
from foretoken.bench.reproduce.papers import Data, Part, Row, Subject, beside
from foretoken.bench.reproduce.workbench import Workbench
from foretoken.errors import ForetokenError
from foretoken.protocol.types import Features
from foretoken.remote.features import Part as Sent
from foretoken.remote.features import bytes_of_row, packed
from foretoken.remote.wire import DraftBody, VerdictBody

_SLOWER = 3.0  # section 4.2: the client's share of the server's speed
_NODES, _ACCEPTED = 62, 4  # of a message, in table 7


def _client_server(bench: Workbench) -> Iterator[Row]:
    """Table 3: the drafter on a client, the model on a host, over 5G and 4G."""
    if not is_real(bench):
        yield from _over_networks(bench)
    for name in reported.TABLE_3 if is_real(bench) else (reported.OFFICIAL,):
        speeds, tokens, calls = reported.TABLE_3[name]
        for network, speed in speeds.items():
            told = {"network": network, "draft": name, "tokens/s": beside(speed, None)}
            yield {"ours on": "", **told, "length": beside(tokens, None), "calls a text": beside(calls, None)}


def _over_networks(bench: Workbench) -> Iterator[Row]:
    subject, data = subject_of(bench)
    drafts = {f"{head(bench, subject, row)}:{TREE}": name for name, row in ALL.items()}
    bench.progress(f"{bench.part}: over networks", 0, 1)
    found = remote.measure(_asked(bench, subject, data, network=["5g", "4g"], draft=["lookup", *drafts]))
    for row in found["rows"]:
        if row["texts_with_other_tokens"]:
            raise ForetokenError("a text over a network is not the model's; please report this")
        if row["network"] is None or row["ahead"]:
            continue
        name = drafts.get(row["draft"], {"none": "no draft"}.get(row["draft"], row["draft"]))
        speeds, tokens, calls = reported.TABLE_3.get(name, ({}, None, None))
        passes = row["rounds"] / found["num_prompts"] + 1  # with that of the prompt
        yield {
            "ours on": subject.called,
            "network": row["network"],
            "draft": name,
            "tokens/s": beside(speeds.get(row["network"]), row["tokens_per_second"]),
            "length": beside(tokens, found["new_tokens"] / passes),
            "tokens a check": beside(None, row["mean_acceptance_length"]),
            "calls a text": beside(calls, passes),
            "bytes to the client, a token": beside(None, row["bytes_received_per_token"]),
            "seconds a round": beside(None, row["seconds_per_round"]),
            "expected": beside(None, row.get("expected_seconds_per_round")),
        }


def _cut_off(bench: Workbench) -> Iterator[Row]:
    """Table 4: the connection is cut, and the client goes on alone."""
    if not is_real(bench):
        yield from _behind_cuts(bench)
    for name in reported.TABLE_4 if is_real(bench) else (reported.OFFICIAL, reported.LOWER_BOUND):
        for cut, passing in zip(reported.CUTS, reported.TABLE_4[name], strict=True):
            told = {"ours on": "", "draft": name, "cut behind": cut}
            yield {**told, "programs that pass, %": beside(passing, None)}


def _behind_cuts(bench: Workbench) -> Iterator[Row]:
    subject, data = subject_of(bench)
    drafts = {f"{head(bench, subject, row)}:{TREE}": name for name, row in HEADS.items()}
    bench.progress(f"{bench.part}: cutting connections", 0, 1)
    most = max(data.max_new_tokens or 0, max(reported.CUTS) + 32)
    asked = _asked(bench, subject, replace(data, max_new_tokens=most), draft=list(drafts), cut=list(reported.CUTS))
    for row in cut_off.measure(asked)["rows"]:
        name = drafts[row["draft"]]
        yield {
            "ours on": subject.called,
            "draft": name,
            "cut behind": row["cut"],
            "programs that pass, %": beside(reported.TABLE_4[name][reported.CUTS.index(row["cut"])], None),
            "tokens behind the cut": beside(None, row["behind"]),
            "of these right from the cut on": beside(None, row["right_from_the_cut_on"]),
            "log probability": beside(None, row["log_probability"]),
            "of the model's own text": beside(None, row["log_probability_of_the_models_own"]),
        }


def _asked(bench: Workbench, subject: Subject, data: Data, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        model=checkpoint(subject, bench.asked.work),
        suite=data.suite,
        num_prompts=data.count,
        max_new_tokens=data.max_new_tokens,
        temperature=0.0,
        pace="fixed",
        slowdown=_SLOWER,
        **more,
    )


def _kept_private(bench: Workbench) -> Iterator[Row]:
    """Appendix A.6: a part of the prompt that the host does not see."""
    if is_real(bench):
        yield {"ours on": "", "draft": reported.OURS, "bytes to the host beside the safe part": beside(0, None)}
        return
    subject, data = subject_of(bench)
    drafts = {f"{head(bench, subject, row)}:{CHAIN}": name for name, row in HEADS.items()}
    bench.progress(f"{bench.part}: private halves of prompts", 0, 1)
    for row in private.measure(_asked(bench, subject, data, draft=list(drafts)))["rows"]:
        yield {
            "ours on": subject.called,
            "draft": drafts[row["draft"]],
            "bytes to the host beside the safe part": beside(0, row["bytes_beside_the_safe_part"]),
            "tokens right from the beginning": beside(None, row["right_from_the_beginning"]),
            "of these without the safe part": beside(None, row["right_from_the_beginning_without_the_safe_part"]),
            "log probability": beside(None, row["log_probability"]),
            "of the model's own text": beside(None, row["log_probability_of_the_models_own"]),
        }


def _messages(bench: Workbench) -> Iterator[Row]:
    """Table 7: bytes of messages, counted in the messages that are sent."""
    sizes = {"Llama3-8B": (4096, 8, 128), "Llama 3.2 1B": (2048, 8, 64)}
    draft = DraftBody(0, (0,) * _NODES, tuple(range(-1, _NODES - 1))).packed()
    for model, (hidden, heads, size) in sizes.items():
        for name, inferred in ((reported.OURS_3, 3), (reported.OURS_1, 1), (reported.OURS, 0), (reported.EAGLE, None)):
            layout: tuple[Sent, ...]
            if inferred is None:
                layout, numbers = (Sent("normed", 1, hidden),), hidden
            else:
                ends = [Sent(f"{what}.{at}", heads, size) for at in range(inferred) for what in ("keys", "values")]
                layout, numbers = (Sent("observed", 1, 2 * heads * size), *ends), 2 * heads * size * (inferred + 1)
            yield _message(model, name, draft, layout, numbers)
        yield _message(model, reported.SMALL, draft, (), 0)


def _message(model: str, name: str, draft: bytes, layout: tuple[Sent, ...], numbers: int) -> Row:
    zeros = {part.name: torch.zeros((_ACCEPTED, part.groups, part.size)) for part in layout}
    block = packed(Features(0, zeros), layout, 0, _ACCEPTED) if layout else b""
    answer = VerdictBody(0, (0,) * _ACCEPTED, None, block).packed()
    scales = _ACCEPTED * (bytes_of_row(layout) - numbers)
    return {
        "model": model,
        "draft": name,
        f"to the host, {_NODES} tokens": beside(4 * _NODES, len(draft)),
        f"to the client, {_ACCEPTED} accepted": beside(3 * _ACCEPTED + _ACCEPTED * numbers, len(answer)),
        "of ours, scales and headers": beside(None, scales + len(answer) - 3 * _ACCEPTED - len(block)),
    }


_NOT_FAR = "At scale paper nothing is measured here: published drafters cannot draft on a client yet."
_FAR = (
    f"{_NOT_FAR} Host, relay and client share this machine; the client's drafts take three times as long as they "
    "do. *Expected* is the same rounds on a clock of its own, with the times of passes in one process. It leaves "
    "out what a Mixture of Attentions observes on the host, so its rounds are expected too short. *Length* and "
    "*calls* count the prompt's pass."
)
_ALONE = (
    f"{_NOT_FAR} The small model writes no programs that pass. In place of them: how many tokens behind the cut "
    "are the model's own, and how probable the model finds what was written there, in nats a token. Without a "
    "cut, 45.9 % pass in the paper."
)
_UNSEEN = (
    f"{_NOT_FAR} The paper describes this and has no figures. The first half of each prompt is safe, the rest is "
    "private. The drafter answers by itself: how many tokens of its answer's beginning are the model's own, the "
    "same if it is asked the private half alone, and how probable the model finds the answer, in nats a token. "
    "Independent drafters see nothing of what the host computes. At scale embedded the drafters have learned nothing."
)
TABLE_3 = Part("Table 3: client and host, over 5G and 4G", _client_server, (_FAR,))
TABLE_4 = Part("Table 4: the connection is cut", _cut_off, (_ALONE,))
TABLE_7 = Part("Table 7: sizes of messages", _messages, ("Numbers have eight bits. Ours have scales, too.",))
A_6 = Part("Appendix A.6: a private part of the prompt", _kept_private, (_UNSEEN,))
