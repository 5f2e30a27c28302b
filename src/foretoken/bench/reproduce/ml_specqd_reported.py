"""ML-SpecQD's own numbers, each with its place in the paper."""

from __future__ import annotations

from dataclasses import dataclass

TITLE = "ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts"
TOKENS = 8  # section IV-A: draft tokens a round
SMALL, COPY, LADDER = "the small model", "the MXFP4 copy", "the MXFP4 copy, then the small model"


@dataclass(frozen=True)
class Reported:
    """The paper's numbers for a use: geometric means of speed-ups over plain decoding (tables I and II), and the share
    of draft tokens that is accepted, in percent (figures 5 and 6, as the text gives their means). small: the draft that
    is a model of its own, and its options. without_int8: speed-ups with fp32 products (table III)."""

    where: str
    model: str
    data: str
    small: str
    small_options: str
    last_options: str  # of the small model below the copy
    speedups: dict[str, float]
    accepted: dict[str, float]
    without_int8: dict[str, float]


REPORTED = (
    Reported(
        "table 1",
        "Llama-2 7B chat",
        "HAGRID",
        "Llama 68M chat",
        "confidence=0.4",
        "confidence=0.4",
        {SMALL: 1.81, COPY: 1.86, LADDER: 2.22},
        {SMALL: 41.7, COPY: 71.2},
        {},
    ),
    Reported(
        "table 2",
        "Qwen2.5-Coder 7B",
        "MBPP",
        "Qwen2.5-Coder 0.5B",
        "confidence=0.65",
        "confidence=0.65:format=mxfp4",
        {SMALL: 2.64, COPY: 2.03, LADDER: 2.72},
        {SMALL: 62.0, COPY: 91.0},
        {COPY: 1.90, LADDER: 2.16},
    ),
)
BANDWIDTH = 104.0  # GB/s, measured on the paper's machine (section IV-A)
OF_8_ROWS = {"int8": 84.0, "fp32": 84.0 / 2.3}  # GB/s of the MXFP4 product with N = 8 (section IV-D)
