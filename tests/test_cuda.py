"""The same code on a GPU. Its bits are others than the CPU's, so it is compared with plain decoding on the GPU."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import foretoken
from foretoken.api.build import plan
from foretoken.api.on_gpu import SHARE
from foretoken.bench.on_gpu import peak_memory
from foretoken.decoder.on_device import host_memory
from foretoken.decoder.rows import chain
from foretoken.errors import DraftSpecError, ModelError
from foretoken.kernels import gpu
from foretoken.kernels.gpu import telling_of_memory
from foretoken.offload.host import Copied, HostMemory, unbound_memory
from foretoken.offload.store import Extent
from foretoken.offload.stream import Stream
from foretoken.training.drafter import Recipe, Training
from foretoken.training.kinds import Kind
from tests.published import random_dflash, random_published, write_published

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")

PROMPT = "def test_one(self):\n    self.assertEqual(1, 1)\n\n\ndef test_two(self):"


def test_a_gpu_says_what_the_cpu_says() -> None:
    logits = []
    for device in ("cpu", "cuda"):
        model = foretoken.load("stdlib-7m", device=device, dtype="float32")
        rows = chain(model.target.new_cache(), model.tokens_of(PROMPT))
        logits.append(model.target.head(model.target.forward(rows)).cpu())
    assert float((logits[0] - logits[1]).abs().max() / logits[0].abs().max()) <= 1e-4


@pytest.mark.parametrize("draft", ["lookup", "int4", "mxfp4,lookup", "int4:k=2", "moa"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_on_a_gpu_gives_what_plain_decoding_gives_there(draft: str, temperature: float) -> None:
    plain, drafted = (
        foretoken.load("stdlib-7m", device="cuda", draft=each, pace="fixed").generate(
            PROMPT, max_new_tokens=60, temperature=temperature, seed=3, hash_logits=True, ignore_eos=True
        )
        for each in ("none", draft)
    )
    assert plain.tokens == drafted.tokens
    assert drafted.stats.accepted_tokens > 0 or temperature
    assert drafted.promise == ("exact" if gpu.runs_on("cuda") else "algorithmic")
    if drafted.promise == "exact":
        assert plain.logits_sha256 == drafted.logits_sha256


@pytest.mark.parametrize("draft", ["none", "subspec", "subspec,lookup"])
def test_layers_that_are_copied_in_each_pass_say_what_those_on_the_gpu_say(draft: str) -> None:
    plain = foretoken.load("stdlib-7m", device="cuda", draft="none").generate(
        PROMPT, max_new_tokens=60, hash_logits=True, ignore_eos=True
    )
    model = foretoken.load("stdlib-7m", device="cuda", draft=draft, pace="fixed", stream_layers="all")
    done = model.generate(PROMPT, max_new_tokens=60, hash_logits=True, ignore_eos=True)
    assert model.target.home == "copied and streamed"
    assert (done.tokens, done.logits_sha256) == (plain.tokens, plain.logits_sha256)
    assert (done.stats.accepted_tokens > 0) == (draft != "none")


@pytest.mark.parametrize(("room", "block"), [(3.0, 1.0), (1.5, 0.25)])
def test_a_part_is_never_overwritten_while_the_gpu_reads_it(room: float, block: float) -> None:
    size, count, device = 1 << 20, 8, torch.device("cuda")
    memory = host_memory(size * count, device)
    memory.copy_(torch.randint(0, 256, (size * count,), dtype=torch.uint8))
    units = [[Extent(0, at * size, (at + 1) * size)] for at in range(count)]
    host = HostMemory(memory)
    buffer = torch.empty(int(room * size), dtype=torch.uint8, device=device)
    stream = Stream([host], units, buffer, block=int(block * size))
    homes = [Copied(stream, at, host=host) for at in range(count)]
    for at in [*range(count)] * 5:
        homes[at].acquire()
        torch.cuda._sleep(20_000_000)  # the GPU comes to read it much later than this thread
        start, stop = stream.place(at)
        seen = stream.memory[start:stop].clone()
        homes[at].release()
        assert torch.equal(seen.cpu(), memory[at * size : (at + 1) * size])


def test_a_bound_of_a_gpu_s_memory_is_kept() -> None:
    settings = {"device": "cuda", "draft": "subspec", "context": 256}
    bound = int(plan("stdlib-7m", memory="2GiB", **settings)[0].plan.total / SHARE) - (2 << 20)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        model = foretoken.load("stdlib-7m", memory=bound, **settings)
        done = model.generate(PROMPT, max_new_tokens=40)
        assert model.target.home == "copied and streamed"
        assert done.stats.accepted_tokens > 0
        assert peak_memory(torch.device("cuda")) <= bound
    finally:
        unbound_memory(torch.device("cuda"))


def test_threads_that_share_a_model_take_turns() -> None:
    model = foretoken.load("stdlib-7m", device="cuda", draft="int4,lookup", pace="fixed")
    prompts = [PROMPT, "class Reader:\n    def read(self):", "import os\n\ndef walk(top):", "x = {"]
    alone = [model.generate(prompt, max_new_tokens=80, ignore_eos=True).tokens for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        beside = list(
            pool.map(lambda prompt: model.generate(prompt, max_new_tokens=80, ignore_eos=True).tokens, prompts)
        )
    assert beside == alone


def test_models_that_end_leave_the_others_as_they_are() -> None:
    stays = foretoken.load("stdlib-7m", device="cuda", draft="int4", pace="fixed")
    before = stays.generate(PROMPT, max_new_tokens=60, hash_logits=True, ignore_eos=True)
    for _ in range(3):
        other = foretoken.load("stdlib-1m", device="cuda", draft="int4", pace="fixed")
        other.generate(PROMPT, max_new_tokens=60, ignore_eos=True)
        del other
        gc.collect()
        torch.cuda.empty_cache()
        again = stays.generate(PROMPT, max_new_tokens=60, hash_logits=True, ignore_eos=True)
        assert (again.tokens, again.logits_sha256) == (before.tokens, before.logits_sha256)


def test_a_gpu_without_memory_is_told_of_in_a_line() -> None:
    with (
        pytest.raises(ModelError, match="the GPU has no memory left; with a bound such as --memory 6GiB"),
        telling_of_memory(),
    ):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("format", ["", ":format=bf16"])
def test_a_published_eagle_drafts_on_a_gpu(tmp_path: Path, format: str) -> None:
    plain = foretoken.load("stdlib-7m", draft="none", device="cuda")
    drafter = random_published(plain.target, sees=(0, 2, 4), residual_normed=False)
    write_published(tmp_path / "it", *drafter, plain.target.config.vocab_size, "sglang")
    expected = plain.generate(PROMPT, max_new_tokens=24, ignore_eos=True).tokens
    for options in ("", ":k=2:depth=3"):
        model = foretoken.load("stdlib-7m", draft=f"{tmp_path / 'it'}{options}{format}", device="cuda", pace="fixed")
        found = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
        assert found.tokens == expected
        assert found.stats.draft_tokens > 20


def test_a_block_that_sees_all_its_rows_is_refused_on_a_gpu(tmp_path: Path) -> None:
    target = foretoken.load("stdlib-7m", draft="none").target
    write_published(tmp_path / "it", *random_dflash(target, sees=(1, 3)), target.config.vocab_size, "authors'")
    with pytest.raises(DraftSpecError, match="runs on the CPU alone"):
        foretoken.load("stdlib-7m", draft=str(tmp_path / "it"), device="cuda")


KINDS = [Kind(), Kind(inferred=1), Kind("block"), Kind("block", inferred=1), Kind("eagle2"), Kind("eagle3")]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_drafter_is_trained_on_a_gpu_and_used_there_and_on_the_cpu(tmp_path: Path, kind: Kind) -> None:
    model = foretoken.load("stdlib-1m", draft="none")
    stream = torch.tensor(model.tokens_of(PROMPT * 30))
    recipe = Recipe(120 * 2 * 48, kind, batch=2, length=48, warmup=2, checkpoints=2, prompts=2, new_tokens=12)
    training = Training(model, stream, stream[-200:], tmp_path / "it", recipe, "cuda")
    losses: list[float] = []
    training.run(lambda progress: losses.append(progress.loss))
    assert losses[-1] < losses[0]
    for device in ("cpu", "cuda"):
        said = []
        for draft in ("none", f"{tmp_path / 'it'}", f"{tmp_path / 'it'}:k=2"):
            model = foretoken.load("stdlib-1m", device=device, draft=draft, pace="fixed")
            done = model.generate(PROMPT, max_new_tokens=40, ignore_eos=True, hash_logits=True)
            assert (done.stats.accepted_tokens > 0) == (draft != "none")
            said.append((done.tokens, done.logits_sha256 if done.promise == "exact" else ""))
        assert said[1] == said[2] == said[0], device
