from __future__ import annotations

import os
import signal
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import pytest

# nothing in the tests may reach for a network
os.environ["HF_HUB_OFFLINE"] = "1"
# nor for what a developer has measured: a remembered draft would be every test's default
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"foretoken-tests-{os.getpid()}")
# several processes share the cores, and threads that wait by looking take them from each other: ten times as long
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# whoever runs the tests in the background ignores Ctrl-C, and so would the commands that tests start and interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
# What does not depend on who multiplies: what is measured, drawn and read from files, the command line, settings and
# messages, casts into formats (which are PyTorch's with either engine). It meets one of the two engines; what the
# command line generates, and says of its engine, meets both.
ABOVE = (
    *(
        "bench",
        "cli",
        "doctor",
        "formats",
        "integrations",
        "offload",
        "pace",
        "prove",
        "rehearsal",
        "remote",
        "serve",
        "timeline",
    ),
    "trees",
    *(
        "copies/test_calibration.py",
        "copies/test_place.py",
        "copies/test_quantise.py",
        "decoder/test_config.py",
        "decoder/test_config_positions.py",
    ),
    *("decoder/test_shards.py", "drafters/test_automaton.py", "drafters/test_lookup.py", "kernels/test_coded.py"),
    *("contracts/test_constrained.py", "copies/test_drafts.py"),
    *("copies/test_low_bit_targets.py", "ladder/test_names.py", "ladder/test_new_drafter.py"),
    *("ladder/test_with_draft.py", "sampling/test_grammar.py", "sampling/test_grammar_limits.py"),
    *("sampling/test_lark.py", "test_openai_messages.py"),
    *("transcript/test_files_as_read.py", "transcript/test_refused_records.py"),
    *("test_chat.py", "test_errors.py", "test_files.py", "test_limits.py", "test_memory.py", "test_public_names.py"),
    *("test_repository.py", "test_settings.py", "test_source.py", "test_stats.py", "test_stopping.py", "test_text.py"),
    *("test_offloading.py", "test_stop_strings.py", "test_tokenizer_files.py", "test_types.py"),
    *("acceptance/test_exact_distribution.py", "drafters/test_translated.py", "engine/test_going_on.py"),
    "test_mapped_files.py",
    # networks are trained in PyTorch with either engine; a rule is judged by what a decoder says, whoever multiplies
    *("training", "acceptance/test_rejection_end_to_end.py"),
    *("test_under_a_bound.py", "test_verified_weights.py"),  # decoder/test_streaming.py meets both
    # what they say of the arithmetic they try with either one, where both are there
    *(
        "engine/test_broken_off_rounds.py",
        "engine/test_conversations.py",
        "engine/test_failing_sequences.py",
        "engine/test_features.py",
        "engine/test_interrupted_turns.py",
        "engine/test_nan.py",
        "engine/test_open_loop.py",
        "engine/test_prefixes.py",
        "engine/test_prefixes_at_random.py",
        "engine/test_prefixes_interrupted.py",
        "engine/test_refused_drafts.py",
        "engine/test_without_a_cache.py",
        "test_generate_many.py",
        "test_generate_beside.py",
    ),
)
# Of a test with many sets of parameters, `make test` tries the first and about one in n of the others, and `make prove`
# all. Without the native module fewer are tried again: all of them meet it, and PyTorch is slow.
SETS = (49, 6), (13, 4), (5, 2)  # from so many sets on, one in n
AGAIN = 5
# every drafter meets its contract, every draft its rule; sets of the benches are different cases, and no products
WHOLE = ("contracts", "acceptance", "bench")
WITH_BOTH = ("cli/test_generate.py", "cli/test_doctor.py", "doctor/test_engine.py")


def _one_in(item: pytest.Item, place: Path, sets: int) -> int:
    """Of how many of a test's sets of parameters one is tried."""
    sampled = item.get_closest_marker("sampled")
    if sampled is not None:
        return int(sampled.args[0])
    if place.parts[0] in WHOLE:
        return 1
    return next((n for least, n in SETS if sets >= least), 1)


@pytest.hookimpl(tryfirst=True)  # before some are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = [(item.path, getattr(item, "originalname", item.name)) for item in items]
    sets, seen = Counter(tests), set[tuple[Path, str]]()
    for item, its in zip(items, tests, strict=True):
        place = item.path.relative_to(HERE)
        if its in seen:  # by its name: every nth of a product would meet some values only
            drawn = zlib.crc32(f"{place.as_posix()} {item.name}".encode())
            if drawn % _one_in(item, place, sets[its]):
                item.add_marker("prove")
            elif drawn // 6 % AGAIN:  # another draw: the remainder by n has been used
                item.add_marker("above_arithmetic")
        seen.add(its)
        if any(place.is_relative_to(above) for above in ABOVE) and place.as_posix() not in WITH_BOTH:
            item.add_marker("above_arithmetic")
