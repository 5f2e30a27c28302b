"""Mixture of Attentions' own numbers, each with its place in the paper; and where the paper contradicts itself."""

from __future__ import annotations

from typing import NamedTuple

TITLE = "Mixture of Attentions for Speculative Decoding"
TARGET, QWEN = "Llama3-8B-Instruct", "Qwen2.5-3B-Instruct"
OURS_3, OURS_1, OURS = "Ours (TLI=3)", "Ours (TLI=1)", "Ours (TLI=0)"
EAGLE, LARGE, SMALL = "EAGLE-2", "Independent, 650M", "Independent, 250M"
VANILLA = "Vanilla decoding"
OFFICIAL = "EAGLE-2, its authors' weights"
DATA = ("MT-Bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM", "Natural Questions")


class OnSpecBench(NamedTuple):
    """A row of table 2 or 9: speed-up and acceptance length by data set, and the printed means of both."""

    speedups: tuple[float, ...]
    lengths: tuple[float, ...]
    speedup: float
    length: float


def _row(*cells: float) -> OnSpecBench:
    """cells: as printed, speed-up and length in turn, the means last."""
    *pairs, speedup, length = cells
    return OnSpecBench(tuple(pairs[::2]), tuple(pairs[1::2]), speedup, length)


# fmt: off
TABLE_2 = {
    OURS_3: _row(1.74, 4.65, 2.02, 5.41, 1.74, 4.65, 1.81, 4.80, 1.89, 5.04, 1.59, 4.23, 1.79, 4.79),
    OURS_1: _row(1.83, 4.19, 2.29, 5.30, 1.83, 4.19, 2.02, 4.65, 2.04, 4.74, 1.71, 3.94, 1.95, 4.50),
    OURS: _row(1.80, 3.86, 2.28, 4.98, 1.80, 3.86, 2.03, 4.36, 2.10, 4.55, 1.72, 3.73, 1.95, 4.22),
    EAGLE: _row(1.77, 3.55, 1.95, 3.92, 1.69, 3.36, 1.89, 3.77, 1.84, 3.69, 1.66, 3.32, 1.78, 3.60),
    OFFICIAL: _row(1.75, 3.52, 2.06, 4.15, 1.80, 3.60, 1.70, 3.37, 1.60, 3.19, 1.38, 2.75, 1.71, 3.43),
    LARGE: _row(1.50, 3.63, 1.91, 4.64, 1.26, 3.01, 1.57, 3.81, 1.56, 3.78, 1.72, 3.94, 1.58, 3.80),
    SMALL: _row(1.23, 3.50, 1.50, 4.36, 0.95, 2.70, 1.33, 3.79, 1.28, 3.59, 1.10, 3.13, 1.23, 3.51),
}
TABLE_9 = {  # Qwen2.5 3B
    OURS: _row(1.71, 3.72, 2.18, 4.76, 1.60, 3.46, 1.88, 4.00, 1.78, 3.89, 1.68, 3.59, 1.80, 3.90),
    EAGLE: _row(1.59, 3.20, 1.84, 3.70, 1.53, 3.06, 1.81, 3.54, 1.60, 3.23, 1.62, 3.17, 1.66, 3.31),
    SMALL: _row(1.59, 3.37, 2.04, 4.38, 1.44, 3.03, 1.70, 3.52, 1.54, 3.27, 1.50, 3.12, 1.63, 3.44),
}
# fmt: on

TABLE_3 = {  # HumanEval: tokens a second by network; acceptance length; calls of the large model
    OURS_3: ({"5g": 25.0, "4g": 14.6}, 4.99, 20.8),
    OURS_1: ({"5g": 30.6, "4g": 20.3}, 4.68, 22.5),
    OURS: ({"5g": 34.1, "4g": 25.1}, 4.30, 24.1),
    EAGLE: ({"5g": 24.3, "4g": 13.6}, 2.81, 36.4),
    OFFICIAL: ({"5g": 28.6, "4g": 15.0}, 3.51, 29.5),
    LARGE: ({"5g": 28.5, "4g": 23.7}, 3.73, 27.1),
    SMALL: ({"5g": 18.3, "4g": 16.1}, 3.16, 32.4),
}
CUTS = (1, 10, 25, 50)
LOWER_BOUND = "Without local model"
TABLE_4 = {  # HumanEval: programs that pass, in percent, by the tokens before the cut; without a cut, 45.9
    OURS_3: (2.48, 11.18, 18.01, 31.67),
    OURS_1: (3.10, 10.55, 21.11, 30.43),
    OURS: (2.48, 9.31, 19.2, 29.81),
    EAGLE: (0, 8.07, 16.77, 27.32),
    OFFICIAL: (1.24, 6.83, 18.01, 28.57),
    LARGE: (0, 6.83, 18.63, 29.81),
    SMALL: (0, 6.21, 18.01, 27.95),
    LOWER_BOUND: (0, 5.59, 16.77, 27.32),
}
TABLE_5 = {  # HumanEval, chains of 4: tokens a second, acceptance length
    OURS_3: (39, 2.54),
    OURS_1: (39, 2.25),
    OURS: (40, 2.14),
    "Ours (TLI=1, -LSA)": (21, 1.28),
    "Ours (TLI=1, -LSA, o inputs)": (36, 2.04),
    "Ours (TLI=0, -LSA, o inputs)": (38, 1.93),
    "EAGLE": (30, 1.45),
    "EAGLE (more params)": (29, 1.28),
    "EAGLE (more layers)": (27, 1.01),
}
TABLE_6 = {  # hyper-parameters
    "learning rate": "3e-5",
    "updates": "186000",
    "windows a step": "32",
    "weight of the KL loss": "0.1",
    "weight of the smooth L1 loss": "1.0",
    "gradients cut at": "1.0",
    "segments of the T-step bound": "5 to 15, uniform",
}
TABLE_8 = {  # quality: HumanEval pass@1 in %, GSM8K accuracy in %, CNN/DM ROUGE-L
    VANILLA: (62.5, 80.0, 0.3071),
    OURS_3: (62.5, 80.0, 0.3053),
    OURS_1: (62.5, 81.25, 0.3068),
    OURS: (62.5, 80.0, 0.3070),
    EAGLE: (62.5, 81.25, 0.3062),
    OFFICIAL: (62.5, 80.0, 0.3056),
    LARGE: (62.5, 80.0, 0.3067),
    SMALL: (62.5, 80.0, 0.3064),
}
TABLE_10 = {  # all of HumanEval: tokens a second, acceptance length
    OURS_3: (54, 5.02),
    OURS_1: (58, 4.70),
    OURS: (57, 4.30),
    EAGLE: (43, 2.82),
    OFFICIAL: (52, 3.50),
    LARGE: (46, 3.72),
    SMALL: (34, 3.17),
    "Ouroboros": (39, 2.37),
    "Vanilla": (33, 1),
}
DOUBTS = (
    "The column GSM8K of table 2 repeats MT-Bench for the three rows of the method.",
    "The mean speed-up of EAGLE-2 in table 2 is printed as 1.78, and its cells give 1.80; so the method is 8.3 % "
    "faster, and not 9.5 %.",
    "The text says that tau counts accepted tokens; the calls of table 3 and the 1 of vanilla decoding in table 10 "
    "show that the bonus token counts, too.",
    'Table 7 is in numbers, which are bytes once they have eight bits; it says "before quantisation".',
    "The times of table 3 on 4G are those of a network with 2.7 Mbit/s, and not with 20.",
)
