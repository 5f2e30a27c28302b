"""After a fork: a generation says the same bits as in the process that loaded the model, or is refused; none hangs.

A child has none of its parent's threads. Ours are made anew. PyTorch waits for its own for ever, if its parent has used
them, so on the way of a native generation nothing may be computed, filled or copied by PyTorch.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import foretoken
from foretoken.api.chat import Chat
from foretoken.api.model import Model
from foretoken.decoder.rows import chain
from foretoken.results.completion import Completion
from tests.tiny import BASE, needs_native, random_tensors, tiny_config, tiny_decoder

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

DRAFTS = ("lookup", "mxfp4", "mxfp4,lookup", "stdlib-1m", "fractal", "moa", "moa:k=2")
TEXT = inspect.getsource(traceback)  # long, and of the kind that the embedded models know
WIDE = {
    "vocab_size": 40_000,
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}
PACKAGE = str(Path(foretoken.__file__).parent)
PATIENCE = 60  # seconds that a child may take, which needs two or so


# -- what is done in a process and in its child -----------------------------------------------------------------------


def generations(model: Model, talk: Chat) -> list[object]:
    """Prompts for which tables and caches must grow: alone, side by side, and in a talk that has begun."""
    prompt = model.tokens_of(TEXT[:4000])
    all_of_it: dict[str, Any] = {"keep_logits": True, "hash_logits": True, "logprobs": 2, "ignore_eos": True}
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "max_new_tokens": 8}
    reply = talk.send(TEXT[:1500], max_new_tokens=8, ignore_eos=True)
    pieces = [piece.token for piece in reply]
    return [
        bits(model.generate(prompt[:600], max_new_tokens=16, **all_of_it)),
        [bits(completion) for completion in model.completions(prompt[:300], n=2, **sampled)],
        (pieces, reply.completion.cached_tokens > 0),
    ]


def bits(completion: Completion) -> object:
    """All that a completion says, down to the last bit of its logits."""
    logits = None if completion.logits is None else bits_of(completion.logits)
    return completion.tokens, completion.logprobs, completion.logits_sha256, logits


def bits_of(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def wide_generations(model: Model) -> object:
    prompt = [(7 * at * at + 3 * at) % 301 for at in range(600)]
    return bits(model.generate(prompt, max_new_tokens=6, keep_logits=True, hash_logits=True))


def wide_checkpoint(folder: str) -> str:
    """A model so wide that PyTorch shares out what it does with one row of logits, or with a page of rotations."""
    config = tiny_config(**WIDE)
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(config, 0).items()}
    save_file(tensors, Path(folder) / "model.safetensors")
    (Path(folder) / "config.json").write_text(json.dumps({**BASE, **WIDE}), encoding="utf-8")
    return folder


# -- processes --------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> str:
    """What some work comes to in a forked child; one that takes too long is killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, outcome(work).encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], PATIENCE)
    answer = os.read(read, 4096).decode() if ready else "hangs"
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return answer


def outcome(work: Callable[[], object]) -> str:
    """A hash of what some work returns, or the error that it ends with."""
    try:
        return hashlib.sha256(repr(work()).encode()).hexdigest()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def forking(*made: Callable[[], Callable[[], object]]) -> None:
    """Print what becomes of the same work in a child and here. Run in a program of its own: a fork of this one would
    have whatever threads other tests have left."""
    warnings.simplefilter("ignore")  # Python warns of forks where there are threads, which is what this is about
    torch.set_num_threads(2)
    (torch.ones(1 << 20) + 1).sum()  # from here on PyTorch has threads, which a child lacks
    for make in made:
        work = make()
        there = in_child(work)
        print("the same" if "Error" not in there and there == outcome(work) else there, flush=True)
        if there == "hangs":
            return  # the others would, too


def made_model(draft: str) -> Callable[[], object]:
    """A model that has generated and a talk that has begun: in parent and child they go on alike."""
    model = foretoken.load("stdlib-7m", draft=draft, threads=2, pace="fixed")
    talk = model.chat(plain=True)
    for _ in talk.send("import os\n", max_new_tokens=4):
        pass
    return lambda: generations(model, talk)


def made_wide_model(draft: str) -> Callable[[], object]:
    with TemporaryDirectory() as folder:
        model = foretoken.load(wide_checkpoint(folder), draft=draft, threads=2)
    model.generate([1, 2, 3], max_new_tokens=2)
    return lambda: wide_generations(model)


def made_nothing(**settings: Any) -> Callable[[], object]:
    """Parent and child load for themselves: weights are converted, copies made."""
    return lambda: bits(foretoken.load("stdlib-7m", **settings).generate("import os\n", max_new_tokens=8))


def made_grandchild() -> Callable[[], object]:
    """A child's child has as many native threads as its parents."""
    return lambda: in_child(lambda: in_child(lambda: foretoken.load("stdlib-1m").target.threads))


def made_damaged_decoder() -> Callable[[], object]:
    decoder = tiny_decoder(threads=2, **WIDE)
    decoder.weights.embedding[3, 5] = torch.inf
    return lambda: str(decoder.nan_error())


def made_pytorch_decoder(threads: int) -> Callable[[], object]:
    decoder = tiny_decoder(threads=threads, arithmetic="pytorch")
    rows = chain(decoder.new_cache(), [1, 2, 3])
    decoder.forward(rows)
    return lambda: bits_of(decoder.forward(chain(decoder.new_cache(), [1, 2, 3])))


def said_by(*made: str) -> list[str]:
    """What a program prints that does some work here and in a child."""
    program = f"from tests.test_forked import *\nforking({', '.join(f'lambda: {call}' for call in made)})"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.prove
@needs_fork
@needs_native
def test_a_forked_child_generates_the_same_bits() -> None:
    assert said_by(*(f"made_model({draft!r})" for draft in DRAFTS)) == ["the same"] * len(DRAFTS)


@needs_fork
@needs_native
def test_a_wide_model_says_the_same_bits_in_a_forked_child() -> None:
    assert said_by("made_wide_model('lookup')", "made_wide_model('fractal')") == ["the same", "the same"]


@pytest.mark.prove
@needs_fork
@needs_native
def test_a_forked_child_loads() -> None:
    made = ("draft='int8'", "draft='mxfp4', threads=2", "dtype='float32'", "weights='copied'")
    assert said_by(*(f"made_nothing({settings})" for settings in made), "made_grandchild()") == ["the same"] * 5


@needs_fork
@needs_native
def test_a_forked_child_finds_out_which_weight_is_damaged() -> None:
    assert said_by("made_damaged_decoder()") == ["the same"]
    said = made_damaged_decoder()()
    assert "1 of 2560000 numbers in model.embed_tokens.weight are NaN or infinite" in str(said), said


WITH_THREADS = (
    "ContractError: this process was forked from another, and PyTorch would wait for 2 threads that only that one has; "
    "begin it with 'spawn', or load the model in it with threads=1"
)


@needs_fork
def test_pytorch_s_passes_are_refused_in_a_forked_child() -> None:
    assert said_by("made_pytorch_decoder(threads=2)") == [WITH_THREADS]


@needs_fork
@pytest.mark.prove
def test_a_forked_child_that_loads_for_pytorch_s_passes_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", "off")
    *right, refused = said_by("made_nothing(threads=1)", "made_nothing(threads=2)")
    assert right == ["the same"]
    assert refused == WITH_THREADS


# -- what would hang --------------------------------------------------------------------------------------------------

# making and showing memory
HARMLESS = (
    "empty",
    "new_empty",
    "view",
    "slice",
    "select",
    "unsqueeze",
    "unbind",
    "split",
    "detach",
    "alias",
    "lift_fresh",
)
FEW = 1000  # numbers that PyTorch never shares out


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what PyTorch does with more than a few numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        numbers = max((x.numel() for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor)), default=0)
        if numbers > FEW and not name.startswith(HARMLESS):
            frames = [f"{f.name} ({Path(f.filename).name})" for f in traceback.extract_stack() if PACKAGE in f.filename]
            self.done.add(f"{name} of {numbers} numbers in {frames[-1]}")
        return out


@needs_native
@pytest.mark.parametrize("draft", ["lookup", "mxfp4,lookup", "mxfp4:k=2:depth=3", "fractal", "fractal:slots=fixed"])
@pytest.mark.parametrize("cache", [True, False], ids=["cached", "without a cache"])
def test_pytorch_has_no_work_in_a_native_generation(draft: str, cache: bool) -> None:
    model = foretoken.load("stdlib-1m", draft=draft, cache=cache, pace="fixed")
    prompt = model.tokens_of(TEXT[:2000])
    with Work() as work:
        model.generate(prompt, max_new_tokens=6, keep_logits=True, hash_logits=True, logprobs=1)
        model.completions(prompt[:50], n=2, temperature=0.8, seed=1, max_new_tokens=8, keep_logits=True)
    assert not work.done
