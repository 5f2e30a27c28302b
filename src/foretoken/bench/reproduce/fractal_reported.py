"""FractalLLM's own numbers, each with its place in the paper."""

from __future__ import annotations

from dataclasses import dataclass

TITLE = "FractalLLM: Lossless Self-Speculative Decoding with Layer Embedded Self-Compression"


@dataclass(frozen=True)
class Reported:
    """The paper's numbers for a model on a data set, plain and with fractal layers. The preprint has tables 1 and 2
    under the same numbers and table 3 as its table 4; all values are the same."""

    model: str
    data: str
    where: str
    tokens_per_second: tuple[float | None, float | None]  # tables 1 and 2
    speedup: float | None  # tables 1 and 2, as "Acc."
    flops: tuple[float | None, float | None]  # tables 1 and 2
    hours: tuple[float | None, float | None]  # table 3
    change: float | None  # table 3, percent
    acceptance: float | None = None  # table 4, of Llama-3.1-8B with w = 8


REPORTED = (
    Reported("Llama-3 3B", "GSM8K", "table 1", (12.20, 14.60), 1.20, (2.5e14, 2.7e14), (1.5, 1.1), -26.7),
    Reported("Llama-3 3B", "XSUM", "table 1", (5.74, 8.49), 1.48, (4.6e14, 5.0e14), (2.5, 1.3), -48.0),
    Reported("Llama-3 3B", "CNN/DM", "table 1", (3.13, 5.51), 1.69, (7.8e14, 8.3e14), (3.5, 2.1), -40.0),
    Reported("Llama-3 8B", "GSM8K", "table 1", (4.26, 7.47), 1.75, (7.6e14, 9.0e14), (5.2, 2.9), -44.2, 0.49),
    Reported("Llama-3 8B", "XSUM", "table 1", (2.25, 4.06), 1.80, (1.1e15, 1.4e15), (6.1, 3.2), -47.5, 0.46),
    Reported("Llama-3 8B", "CNN/DM", "table 1", (1.01, 2.15), 2.12, (1.8e15, 2.2e15), (10.3, 5.1), -50.5, 0.54),
    Reported("CodeLlama-13B", "HumanEval", "table 2", (1.79, 4.43), 2.47, (4.1e15, 4.0e15), (12.1, 4.5), -62.8),
)
NOTHING = Reported("", "", "", (None, None), None, (None, None), (None, None), None)  # beside a stand-in
HYPERPARAMETERS = {  # table 5 (table 3 in the preprint): layers, n, w; and the name of the model's shape
    "Llama-3 3B": (28, 7, 7, "llama-3.2-3b"),
    "Llama-3 8B": (32, 8, 8, "llama-3.1-8b"),
    "CodeLlama-13B": (40, 10, 10, "codellama-13b"),
}
DELTA = ("Llama-3 3B", "GSM8K", 0.74)  # appendix A: a check accepts n + 0.74 tokens, 7.74 at n = 7, on 10 prompts
