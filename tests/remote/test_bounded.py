"""A host under a bound of memory: layers are read from the disk in each pass, and texts share the room of one."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import foretoken
from foretoken.api.build import plan
from foretoken.api.hosting import host as hosted
from foretoken.errors import RemoteError, SettingError
from foretoken.pace.unpriced import PlainAtTimes, SeenCost
from foretoken.protocol.types import Draft, PromptChunk
from foretoken.remote.features import NOTHING_OFFERED
from foretoken.remote.host import Host, Listening
from foretoken.remote.limits import Limits
from tests.offload.faulty import large
from tests.remote.served import client

__all__ = ["large"]

MODEL, CONTEXT, DRAFT = "stdlib-7m", 256, "lookup:tokens=23"
PROMPTS = ["import os\n", "def test_one(self):\n    self.assertEqual(1, 1)\n\n\ndef test_two(self):"]


@pytest.fixture(scope="module")
def truth() -> foretoken.Model:
    return foretoken.load(MODEL, draft="none")


@pytest.fixture(scope="module")
def model() -> foretoken.Model:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("foretoken.api.offloading.memory_in_use", lambda: 300 << 20)
        whole = plan(MODEL, memory="4GiB", draft=DRAFT, context=CONTEXT)[0].plan.total
        return foretoken.load(MODEL, memory=whole - (5 << 20), draft=DRAFT, context=CONTEXT)


@pytest.fixture
def host(model: foretoken.Model) -> Iterator[Host]:
    its = hosted(model, Listening(port=0), Limits())
    yield its
    its.close()


def test_texts_are_the_model_s_and_drafts_have_as_many_rows_as_were_planned(
    host: Host, model: foretoken.Model, truth: foretoken.Model
) -> None:
    assert "streamed" in model.target.home
    assert host.about.rows == 24
    found: dict[str, tuple[int, ...]] = {}

    def work(prompt: str) -> None:
        found[prompt] = client(host, draft="lookup:tokens=60").generate(prompt, max_new_tokens=60).tokens

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {prompt: truth.generate(prompt, max_new_tokens=60).tokens for prompt in PROMPTS}
    assert host.room.checked > 0


def test_drafts_and_prompts_share_the_rows_of_a_pass(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.room.limits.together == max(24, host.room.limits.prompt_rows)
    rows: list[tuple[int, int]] = []
    submit = host.room._verifier.submit

    def noted(drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        rows.append((sum(len(each) + 1 for each in drafts), sum(each.rows for each in chunks)))
        return submit(drafts, chunks)

    monkeypatch.setattr(host.room._verifier, "submit", noted)
    monkeypatch.setattr(host.room, "limits", Limits(rows=24, prompt_rows=40, together=40))
    stream = client(host, draft="lookup:tokens=12").stream(PROMPTS[1], max_new_tokens=200, ignore_eos=True)
    next(stream)
    decoding = threading.Thread(target=list, args=(stream,))
    decoding.start()
    client(host, draft="none").generate([5] * 200, max_new_tokens=4)
    decoding.join()
    assert any(drafted and read for drafted, read in rows)
    assert max(drafted + read for drafted, read in rows) == 40


def test_texts_have_the_room_of_one_together(host: Host) -> None:
    first, other = client(host, draft="none"), client(host, draft="none", patience=0.3)
    stream = first.stream(PROMPTS[0], max_new_tokens=200, ignore_eos=True)
    next(stream)
    with pytest.raises(RemoteError, match="the host has no memory left for a text of"):
        other.generate(PROMPTS[0], max_new_tokens=200)
    stream.close()


def test_a_pace_learns_what_checks_cost_where_the_host_does_not_say(
    host: Host, truth: foretoken.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(client(host, draft="lookup", pace="auto").pace, PlainAtTimes)
    monkeypatch.setattr(host, "about", replace(host.about, prices={}))
    its = client(host, draft="lookup", pace="auto")
    assert isinstance(its.pace, PlainAtTimes)
    learned: list[int] = []
    heard = SeenCost.heard
    monkeypatch.setattr(
        SeenCost, "heard", lambda self, rows, seconds: (learned.append(rows), heard(self, rows, seconds))
    )
    assert its.generate(PROMPTS[1], max_new_tokens=60).tokens == truth.generate(PROMPTS[1], max_new_tokens=60).tokens
    assert learned[:2] == [1, 1], "two rounds without a draft"
    assert max(learned) > 1
    user_s = client(host, draft="lookup", pace="auto", num_speculative_tokens=3)
    assert not isinstance(user_s.pace, PlainAtTimes), "its length is the same in every round"


def test_what_a_trained_drafter_sees_is_not_offered(host: Host, model: foretoken.Model) -> None:
    assert host.about.offered == NOTHING_OFFERED
    with pytest.raises(
        SettingError, match="a drafter is named for clients, and under a bound of memory there is no room"
    ):
        hosted(model, Listening(port=0), Limits(), ["moa"])


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak of memory")
def test_a_host_stays_within_its_bound(large: Path) -> None:
    """A process of its own, as a user starts it, with three clients at once."""
    options = ["--memory", "520MB", "--context", "512"]
    command = [sys.executable, "-m", "foretoken", "host", str(large), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "listens at" in line)
            url = re.search(r"ws://\S+?(?=;)", said)
            assert url is not None, said
            texts: list[tuple[int, ...]] = []

            def work() -> None:
                its = foretoken.load(remote=url.group(), draft="lookup")
                texts.append(its.generate(PROMPTS[1], max_new_tokens=100, ignore_eos=True).tokens)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        finally:
            process.terminate()
    expected = foretoken.load(large, draft="none").generate(PROMPTS[1], max_new_tokens=100, ignore_eos=True).tokens
    assert texts == [expected] * 3
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    assert peak is not None
    assert int(peak.group(1)) * 1024 <= 520_000_000
