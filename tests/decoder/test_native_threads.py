"""Native passes on several threads, from several threads, and after a fork: the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.native_pass import NativePass
from foretoken.decoder.rows import Rows, chain
from foretoken.errors import ContractError, NativeError
from foretoken.kernels import native
from tests.decoder.models import random_tokens, random_tree
from tests.decoder.outcomes import Outcome, after, dtypes, read_committed, run
from tests.isas import HERE, with_isa
from tests.tiny import needs_native, tiny_decoder

pytestmark = needs_native

# large enough for every kind of work to be shared out: products, norms, packing, attention by rows, heads and blocks
WIDE = {"vocab_size": 400, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 48}


def wide_decoder(threads: int, dtype: torch.dtype = torch.bfloat16, arithmetic: str = "auto") -> Decoder:
    return tiny_decoder(seed=5, dtype=dtype, threads=threads, arithmetic=arithmetic, **WIDE)


def some_passes(decoder: Decoder) -> list[Outcome]:
    """Long chunks, a single row over several blocks of positions, a tree, and sequences side by side."""
    text = random_tokens(560, seed=1, vocab=400)
    cache = decoder.new_cache()
    outcomes = [read_committed(decoder, text, [300, 259, 1], cache)]
    outcomes.append(run(decoder, chain(cache, [7])))
    cache.discard()
    outcomes.append(run(decoder, Rows([(cache, random_tokens(24, 2, 400), random_tree(24, 3))])))
    cache.discard()
    other = after(decoder, text[:30])
    outcomes.append(run(decoder, Rows([(cache, [7, 8], [-1, 0]), (other, [9, 10], [-1, -1])])))
    return outcomes


@pytest.fixture
def slow() -> Iterator[Callable[[Decoder, int], None]]:
    """Slows a thread of a decoder down; when the test ends, all are as fast as before, for decoders share threads."""
    slowed: list[tuple[NativePass, int]] = []

    def slow_down(decoder: Decoder, thread: int) -> None:
        assert isinstance(decoder._pass, NativePass)
        decoder._pass.slow_down(thread, 300)
        slowed.append((decoder._pass, thread))

    yield slow_down
    for native_pass, thread in slowed:
        native_pass.slow_down(thread, 0)


# -- its own threads --------------------------------------------------------------------------------------------------


@dtypes
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    alone = some_passes(wide_decoder(1, dtype))
    for threads in (2, 3, 5):
        assert some_passes(wide_decoder(threads, dtype)) == alone, threads


@pytest.mark.parametrize("isa", HERE)
def test_the_number_of_threads_changes_no_bit_at_any_level(isa: str) -> None:
    cache_of, text = {}, random_tokens(70, seed=1, vocab=400)
    for threads in (1, 3):
        decoder = wide_decoder(threads, arithmetic=f"native {isa}")
        cache_of[threads] = decoder.new_cache()
        read_committed(decoder, text, [60, 1], cache_of[threads])
    assert cache_of[1].digest() == cache_of[3].digest()


@pytest.mark.parametrize("thread", [0, 1, 2])
def test_a_thread_that_is_slow_changes_no_bit(thread: int, slow: Callable[[Decoder, int], None]) -> None:
    # others take over what it would have done, or wait for what it holds
    decoder, text = wide_decoder(3), random_tokens(300, seed=1, vocab=400)
    expected = read_committed(wide_decoder(1), text, [290, 9, 1])
    slow(decoder, thread)
    assert read_committed(decoder, text, [290, 9, 1]) == expected
    assert (
        decoder.draft_chain(after(decoder, text[:20]), 7, 4).tokens
        == wide_decoder(1).draft_chain(after(wide_decoder(1), text[:20]), 7, 4).tokens
    )


def test_passes_one_after_the_other_for_a_long_time(slow: Callable[[Decoder, int], None]) -> None:
    # threads go to sleep between passes, and wake up for some of their work
    decoder = tiny_decoder(threads=3, vocab_size=4000)
    expected = run(decoder, chain(decoder.new_cache(), [1, 2, 3]))
    for at in range(300):
        if at == 150:
            slow(decoder, 2)
        assert run(decoder, chain(decoder.new_cache(), [1, 2, 3])) == expected, at


# -- other people's threads -------------------------------------------------------------------------------------------


def at_once(*works: Callable[[], object]) -> list[object]:
    """What some calls return that run in Python threads of their own, at the same time."""
    gate = threading.Barrier(len(works))

    def begin(work: Callable[[], object]) -> object:
        gate.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def greedy(decoder: Decoder, start: int, count: int = 40) -> tuple[list[int], str]:
    """A text, token by token, and the digest of its cache."""
    cache, tokens = decoder.new_cache(), [start]
    for _ in range(count):
        rows = chain(cache, tokens[-1:])
        choice = decoder.run(rows).choice(0)
        assert choice is not None
        cache.commit([0], rows.writer)
        tokens.append(choice)
    return tokens, cache.digest()


@pytest.mark.parametrize(("one", "other"), [(1, 1), (2, 2), (2, 3), (1, 3)])
def test_two_decoders_in_two_threads(one: int, other: int) -> None:
    # those with as many threads share them: one pass at a time
    first, second = tiny_decoder(1, threads=one), tiny_decoder(2, torch.bfloat16, threads=other)
    expected = [greedy(first, 3), greedy(second, 4), greedy(first, 5)]
    works = (lambda: greedy(first, 3), lambda: greedy(second, 4), lambda: greedy(first, 5))
    for _ in range(3):
        assert at_once(*works) == expected


def test_a_new_decoder_used_from_many_threads_at_once() -> None:
    # what is made on the first use (pages of rotations, threads) is made once, or alike
    expected = greedy(tiny_decoder(threads=2), 3, 5)
    for _ in range(5):
        decoder = tiny_decoder(threads=2)
        assert at_once(*[lambda decoder=decoder: greedy(decoder, 3, 5)] * 6) == [expected] * 6


# -- processes --------------------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def expect_to_print(script: str, line: str, seconds: int = 60) -> None:
    """A program of its own, because a fork of this one would have whatever threads other tests have left."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds, check=False)
    assert (done.returncode, done.stdout) == (0, f"{line}\n"), done.stderr


FORK = """
import os, sys, warnings
import torch
warnings.simplefilter("ignore")  # Python warns of forks where there are threads, which is what this is about
torch.set_num_threads(1)
from foretoken.decoder.rows import chain
from tests.decoder.test_native_threads import greedy
from tests.tiny import tiny_decoder

decoder = tiny_decoder(threads=3, vocab_size=4000)
assert decoder.arithmetic.startswith("native")
expected = greedy(decoder, 3)
held = decoder.new_cache()
rows = chain(held, [1, 2, 3])
decoder.forward(rows)

def same(decoder):
    held.commit(range(3), rows.writer)
    return greedy(decoder, 3) == expected and decoder.draft_chain(held, 4, 3) is not None

child = os.fork()
if child == 0:
    # with the parent's decoder, and with one of its own
    right = same(decoder) and greedy(tiny_decoder(threads=3, vocab_size=4000), 3) == expected
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if greedy(decoder, 3) == expected else 1)
    status = os.waitpid(grandchild, 0)[1]
    os._exit(0 if right and status == 0 else 1)
right = same(decoder)
assert os.waitpid(child, 0)[1] == 0, "the child computes something else"
assert right and greedy(decoder, 3) == expected, "the parent computes something else"
print("the same")
"""


@needs_fork
def test_a_process_that_forks_after_a_pass_computes_the_same_as_its_child() -> None:
    expect_to_print(FORK, "the same")


FORK_WITHIN_A_PASS = """
import os, threading, warnings
import torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from tests.decoder.test_native_threads import greedy
from tests.tiny import tiny_decoder

decoder = tiny_decoder(threads=3, vocab_size=4000)
expected = greedy(decoder, 3)
ending, passes = threading.Event(), [0]

def keep_busy():
    while not ending.is_set():
        assert greedy(decoder, 3) == expected
        passes[0] += 1

busy = threading.Thread(target=keep_busy)
busy.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if greedy(decoder, 3) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child computes something else"
ending.set()
busy.join()
assert passes[0] > 1, "no pass was under way"
print("the same")
"""


@needs_fork
def test_a_process_may_fork_while_another_thread_of_it_is_in_a_pass() -> None:
    expect_to_print(FORK_WITHIN_A_PASS, "the same", seconds=120)


FORK_WHILE_THREADS_ARE_MADE = """
import os, threading, warnings
import torch
warnings.simplefilter("ignore")
from foretoken.kernels import native

native.module()  # not while another thread forks: Python's lock of an import under way stays taken in the child
x, weight = torch.ones(1, 64), torch.ones(64, 64)
making = threading.Thread(target=lambda: [native.linear(x, weight, None, "generic", n) for n in range(2, 80)])
making.start()
forks = 0
while making.is_alive():
    child = os.fork()
    if child == 0:
        os._exit(0 if native.linear(x, weight, None, "generic", 1)[0, 0] == 64 else 1)
    assert os.waitpid(child, 0)[1] == 0
    forks += 1
making.join()
assert forks > 1, "nothing was under way"
print("none hangs")
"""


@needs_fork
def test_a_process_may_fork_while_another_thread_of_it_makes_threads() -> None:
    expect_to_print(FORK_WHILE_THREADS_ARE_MADE, "none hangs")


# -- instruction sets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", HERE)
def test_a_decoder_runs_at_the_level_that_it_was_asked_for(isa: str) -> None:
    assert tiny_decoder(arithmetic=f"native {isa}").arithmetic == f"native {isa}"


def test_a_level_that_is_not_there_is_refused() -> None:
    with pytest.raises(NativeError, match=r"^there is no instruction set 'avx3'; did you mean 'avx2'\? \(known: "):
        tiny_decoder(arithmetic="native avx3")
    for isa in native.ISAS:
        if isa not in HERE:
            with pytest.raises(NativeError) as error:
                tiny_decoder(arithmetic=f"native {isa}")
            assert str(error.value).startswith(f"instruction set {isa} was asked for, but ")
            assert str(error.value).endswith(f"; it has {', '.join(native.supported())}")
    with pytest.raises(ContractError) as wrong:
        tiny_decoder(arithmetic="natve")
    assert str(wrong.value) == "arithmetic is 'natve'; expected auto, pytorch, triton, native or native ISA"


@pytest.mark.parametrize("isa", HERE)
def test_the_level_that_the_environment_forces_is_the_decoder_s(isa: str) -> None:
    before = tiny_decoder(threads=1)
    with with_isa(isa):
        assert native.isa() == isa
        decoder = tiny_decoder(threads=1)
    assert decoder.arithmetic == f"native {isa}"
    assert before.arithmetic == tiny_decoder(threads=1).arithmetic == f"native {native.isa()}"
    assert greedy(decoder, 3) == greedy(before, 3)
