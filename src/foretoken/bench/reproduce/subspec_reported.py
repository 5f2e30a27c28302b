"""SubSpec's own numbers, each with its place in the paper.

The paper contradicts itself in places, which `DOUBTS` lists. Cells that cannot be read in the text of the paper that
was at hand are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

TITLE = (
    "Speculate Deep and Accurate: Lossless and Training-Free Acceleration for Offloaded LLMs via Substitute "
    "Speculative Decoding"
)
PLAIN, EAGLE, SUBSPEC, SELF = "none", "EAGLE-2", "SubSpec", "the model itself"
DATA = ("MT-Bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM")
REASONING = ("AIME 2024", "MATH 500", "GPQA Diamond", "LiveCodeBench")

L8, Q7, Q14, Q32 = "Llama-3.1 8B", "Qwen2.5 7B", "Qwen2.5 14B", "Qwen2.5 32B"
L1, Q1 = "Llama-3.2 1B", "Qwen2.5 1.5B"
SMALL_OF = {L8: L1, Q7: Q1, Q14: Q1, Q32: Q1}


@dataclass(frozen=True)
class Reported:
    """A line of table 1 or 6: tokens a second and the average acceptance length by data set, then their printed means
    and the printed speed-up over plain offloading."""

    target: str
    draft: str
    temperature: float
    tokens_per_second: tuple[float, ...]
    lengths: tuple[float, ...]
    mean: float
    speedup: float
    mean_length: float
    data: tuple[str, ...] = DATA

    def of(self, data: str) -> tuple[float | None, float | None]:
        """Tokens a second and acceptance length on a data set; None for another data set."""
        if data not in self.data:
            return None, None
        at = self.data.index(data)
        return self.tokens_per_second[at], self.lengths[at]


def _line(target: str, draft: str, temperature: float, *cells: float) -> Reported:
    """cells: as printed, tokens a second and length in turn, the mean with its speed-up behind it."""
    *pairs, mean, speedup, length = cells
    data = DATA if len(pairs) == 2 * len(DATA) else REASONING
    return Reported(target, draft, temperature, tuple(pairs[::2]), tuple(pairs[1::2]), mean, speedup, length, data)


# fmt: off
_PLAIN = (  # printed for both temperatures
    _line(L8, PLAIN, 0.0, 2.40, 1, 2.39, 1, 2.40, 1, 2.40, 1, 2.34, 1, 2.39, 1.00, 1),
    _line(Q7, PLAIN, 0.0, 2.77, 1, 2.77, 1, 2.77, 1, 2.77, 1, 2.34, 1, 2.68, 1.00, 1),
    _line(Q14, PLAIN, 0.0, 1.22, 1, 1.22, 1, 1.22, 1, 1.22, 1, 1.17, 1, 1.20, 1.00, 1),
    _line(Q32, PLAIN, 0.0, 0.52, 1, 0.52, 1, 0.52, 1, 0.52, 1, 0.50, 1, 0.52, 1.00, 1),
)
TABLE_1 = (
    *_PLAIN,
    *(replace(line, temperature=0.6) for line in _PLAIN),
    _line(L8, EAGLE, 0.0, 7.56, 3.90, 8.58, 4.43, 8.05, 4.15, 7.59, 3.90, 6.45, 3.34, 7.65, 3.20, 3.95),
    _line(L8, L1, 0.0, 15.14, 11.91, 25.79, 20.23, 20.17, 15.71, 14.98, 11.54, 10.05, 8.66, 17.23, 7.22, 13.61),
    _line(L8, SUBSPEC, 0.0, 24.29, 28.35, 28.09, 31.63, 27.78, 31.55, 22.13, 25.38, 22.60, 31.39, 24.98, 10.47, 29.66),
    _line(Q7, EAGLE, 0.0, 8.00, 3.73, 8.76, 4.08, 8.28, 3.85, 7.47, 3.47, 6.47, 3.02, 7.80, 2.91, 3.63),
    _line(Q7, Q1, 0.0, 15.78, 12.27, 28.29, 21.83, 22.86, 17.59, 12.37, 9.47, 9.34, 7.88, 17.73, 6.61, 13.82),
    _line(Q7, SUBSPEC, 0.0, 25.35, 27.08, 33.48, 34.77, 33.04, 34.18, 22.30, 23.19, 21.28, 26.33, 27.09, 10.10, 29.11),
    _line(Q14, Q1, 0.0, 8.17, 10.81, 16.20, 21.45, 12.58, 16.54, 6.46, 8.43, 4.40, 6.40, 9.56, 7.92, 12.73),
    _line(Q14, SUBSPEC, 0.0, 12.05, 26.36, 15.70, 33.76, 15.44, 32.94, 10.34, 21.79, 9.27, 24.08, 12.56, 10.4, 27.79),
    _line(Q32, Q7, 0.0, 3.68, 12.55, 6.09, 20.73, 5.30, 17.91, 3.20, 10.74, 2.15, 8.32, 4.08, 7.86, 14.05),
    _line(Q32, Q1, 0.0, 4.49, 10.87, 8.22, 19.90, 6.74, 16.17, 3.61, 8.62, 2.39, 6.46, 5.09, 9.80, 12.40),
    _line(Q32, SUBSPEC, 0.0, 6.33, 27.53, 7.58, 32.70, 7.96, 33.66, 5.80, 24.50, 4.80, 26.48, 6.50, 12.50, 28.97),
    _line(L8, EAGLE, 0.6, 7.38, 3.81, 8.30, 4.29, 7.60, 3.92, 7.49, 3.86, 6.19, 3.21, 7.39, 3.10, 9.96),
    _line(L8, L1, 0.6, 12.30, 9.69, 21.37, 16.82, 15.88, 12.42, 12.80, 9.83, 8.16, 6.93, 14.10, 5.91, 11.14),
    _line(L8, SUBSPEC, 0.6, 14.62, 17.58, 22.59, 26.04, 16.51, 19.54, 13.17, 15.46, 11.61, 15.37, 15.70, 6.58, 18.80),
    _line(Q7, EAGLE, 0.6, 7.42, 3.45, 8.49, 3.96, 8.07, 3.76, 6.47, 3.01, 5.69, 2.66, 7.23, 2.69, 3.37),
    _line(Q7, Q1, 0.6, 13.19, 10.43, 22.96, 18.06, 19.19, 15.02, 10.59, 8.21, 7.63, 6.44, 14.71, 5.48, 11.63),
    _line(Q7, SUBSPEC, 0.6, 15.92, 17.09, 29.13, 30.57, 23.89, 25.32, 14.43, 14.98, 10.15, 12.07, 18.70, 6.97, 20.00),
    _line(Q14, Q1, 0.6, 6.53, 8.62, 11.90, 15.73, 9.87, 12.99, 5.43, 7.09, 3.77, 5.42, 7.50, 6.21, 9.97),
    _line(Q14, SUBSPEC, 0.6, 6.90, 15.22, 12.17, 26.74, 9.56, 21.02, 6.14, 13.05, 4.40, 10.90, 7.83, 6.49, 17.39),
    _line(Q32, Q7, 0.6, 2.64, 9.08, 4.86, 16.67, 3.90, 13.24, 2.49, 8.37, 1.76, 6.61, 3.13, 6.03, 10.79),
    _line(Q32, Q1, 0.6, 3.71, 9.03, 5.72, 13.93, 4.80, 11.61, 2.94, 7.06, 1.94, 5.26, 3.82, 7.35, 9.38),
    _line(Q32, SUBSPEC, 0.6, 3.74, 16.40, 6.15, 26.54, 4.41, 19.32, 3.37, 14.16, 2.65, 13.33, 4.06, 7.82, 17.95),
)
_R1 = "DeepSeek-R1-Distill"
R1_L8, R1_Q7, R1_Q14, R1_Q32 = f"{_R1} Llama 8B", f"{_R1} Qwen 7B", f"{_R1} Qwen 14B", f"{_R1} Qwen 32B"
QWQ = "QwQ 32B"
TABLE_6 = (
    _line(R1_L8, PLAIN, 0.0, 2.40, 1, 2.40, 1, 2.40, 1, 2.39, 1, 2.40, 1.00, 1),
    _line(R1_L8, SUBSPEC, 0.0, 31.30, 38.64, 32.39, 39.89, 27.54, 34.18, 28.44, 35.69, 29.92, 12.49, 37.10),
    _line(R1_Q7, PLAIN, 0.0, 2.71, 1, 2.71, 1, 2.71, 1, 2.76, 1, 2.77, 1.00, 1),
    _line(R1_Q7, SUBSPEC, 0.0, 33.45, 37.76, 35.25, 39.55, 27.74, 31.41, 29.94, 34.45, 31.60, 11.42, 34.72),
    _line(R1_Q14, PLAIN, 0.0, 1.22, 1, 1.22, 1, 1.21, 1, 1.21, 1, 1.21, 1.00, 1),
    _line(R1_Q14, SUBSPEC, 0.0, 17.38, 40.57, 17.60, 40.96, 14.93, 35.07, 15.73, 37.42, 16.41, 13.51, 38.51),
    _line(R1_Q32, PLAIN, 0.0, 0.52, 1, 0.52, 1, 0.52, 1, 0.52, 1, 0.52, 1.00, 1),
    _line(R1_Q32, SUBSPEC, 0.0, 9.56, 43.59, 9.70, 44.00, 8.57, 39.45, 8.47, 39.70, 9.07, 13.76, 41.68),
    _line(QWQ, PLAIN, 0.0, 0.52, 1, 0.52, 1, 0.52, 1, 0.52, 1, 0.52, 1.00, 1),
    _line(QWQ, SUBSPEC, 0.0, 7.95, 36.29, 8.11, 36.93, 6.86, 31.54, 5.89, 27.47, 7.20, 13.76, 33.06),
)
# fmt: on

# table 2, of Qwen2.5 7B on MT-Bench: tokens a second, speed-up, length. What of its middle rows is None cannot be read
ABLATION: dict[str, tuple[float | None, float | None, float | None]] = {
    PLAIN: (2.77, 1.00, 1.0),
    "substitutes, shared layers": (19.54, 7.05, 23.07),
    "+ shared keys and values": (None, None, None),
    "+ sharpening": (None, 8.54, None),
    "+ asynchronous transfer": (25.35, 9.15, 27.08),
}
# table 3, of Llama-3.1 8B on MT-Bench: tokens a second
OFFLOADED = "the model, offloaded"
QUANTISED = {OFFLOADED: 2.40, "GPTQ, int4": 58.87, "AWQ, int4": 32.32, "HQQ, int4": 135.84, SUBSPEC: 24.29}
# table 4, SpecExec on MT-Bench (Llama-3.1 8B, Llama-3.2 1B): by budget GB of GPU memory, tokens a second, length
SPECEXEC: dict[int, tuple[float | None, float, float | None]] = {
    64: (None, 11.75, None),
    128: (8.43, 12.21, 9.42),
    256: (8.55, 13.02, 10.79),
    512: (8.79, 13.77, 12.40),
    1024: (9.27, 12.95, 12.93),
}
# table 5, of Qwen2.5 7B on MT-Bench: length by the draft's temperature
SHARPNESS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
LENGTHS: dict[str, Sequence[float | None]] = {
    SELF: (34.50, 33.03, 31.95, 29.64, 27.79, 26.57),
    EAGLE: (3.42, 3.62, 3.70, 3.71, 3.76, 3.77),
    Q1: (11.86, 12.20, 12.48, 12.36, 12.42, 12.51),
    SUBSPEC: (27.08, None, None, None, 23.92, None),  # section D's text has these two; the others cannot be read
}
# table 7, of Llama-3.1 8B on MT-Bench: tokens a second, length
LOW_BIT_TARGET = {"fp16": (24.29, 29.66), "int8": (33.03, 29.76)}
DEVIATION = 0.101  # section 5.2: tokens a second, over five runs on MT-Bench; of which model, it does not say

DOUBTS = (
    "Table 1 prints a mean length of 9.96 for EAGLE-2 on Llama-3.1 8B at temperature 0.6; its cells give 3.82.",
    "The text says that at temperature 0.6 the speed-up is still 5.8 to 7.8 times; the table's least is 6.49. It says "
    "that the speed-up falls by about 60 %; by the table it falls by 31 to 38 %, to about 65 %.",
    "Table 6 prints means of 2.77 tokens/s (plain) and 34.72 tokens (SubSpec) for R1-Distill Qwen 7B; its cells give "
    "2.72 and 35.79. It prints 13.76 times for R1-Distill Qwen 32B; 9.07 over 0.52 is 17.4.",
    "Table 7 pairs the speed on MT-Bench (24.29) with the mean length over five data sets (29.66); table 1 has 28.35 "
    "tokens on MT-Bench.",
    "On CNN/DM plain decoding of Qwen2.5 7B has 2.34 tokens/s, the very number of Llama-3.1 8B, and 2.77 elsewhere.",
)
