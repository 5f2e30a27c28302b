"""Peers side by side: fake programs that speak as peers do, well and badly, and what is said of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.api.build import load
from foretoken.bench.records import read
from foretoken.bench.side_by_side import measuring, table
from foretoken.bench.side_by_side.environments import environment
from foretoken.bench.side_by_side.peers import PEERS
from foretoken.bench.side_by_side.process import PeerProcess
from foretoken.bench.side_by_side.rows import OURS, PLAIN, Sample, Way, row
from foretoken.errors import DraftSpecError, InputError, SettingError
from foretoken.settings.load import LoadSettings
from tests.bench.fake_peers import BAD, GOOD, peer_of
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]  # a fixture

PROMPTS = (tuple(range(40, 60)), tuple(range(300, 330)))
NEW = 6


@pytest.fixture(scope="module")
def ours() -> list[tuple[int, ...]]:
    model = load("stdlib-1m", draft="none")
    return [model.generate(tokens, max_new_tokens=8, ignore_eos=True).tokens for tokens in PROMPTS]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token takes 10 ms, ours and a peer's, whatever else runs on this machine."""
    ours, ask = measuring._ours, PeerProcess.ask

    def ours_steadily(model: Any) -> measuring.Generate:
        generate = ours(model)
        return lambda tokens, count: (generate(tokens, count)[0], 0.01 * count)

    def ask_steadily(peer: PeerProcess, mode: str, tokens: tuple[int, ...], count: int) -> tuple[list[int], float]:
        return ask(peer, mode, tokens, count)[0], 0.01 * count

    monkeypatch.setattr(measuring, "_ours", ours_steadily)
    monkeypatch.setattr(PeerProcess, "ask", ask_steadily)


@pytest.fixture
def asking(tmp_path: Path, ours: list[tuple[int, ...]]) -> dict[str, Any]:
    """What a measurement is asked with, but for peers."""
    lines = [json.dumps({"id": f"p{number}", "prompt_tokens": tokens}) for number, tokens in enumerate(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "known.json").write_text(json.dumps(list(zip(PROMPTS, ours, strict=True))), encoding="utf-8")
    return {
        "model": "stdlib-1m",
        "drafts": ["lookup"],
        "work": tmp_path,
        "prompts": str(tmp_path / "prompts.jsonl"),
        "max_new_tokens": NEW,
        "repeats": 2,
        "timeout": 60.0,
    }


@pytest.mark.usefixtures("steady")
def test_every_mode_has_a_row_and_what_fails_says_why(asking: dict[str, Any], tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = []
    asked = measuring.Asked(peers=[peer_of(tmp_path, GOOD), peer_of(tmp_path, BAD["dies"][0], "bad")], **asking)
    record = measuring.measure(asked, keep=lambda so_far: kept.append(json.loads(json.dumps(so_far))))
    rows = {(row["engine"], row["mode"]): row for row in record["rows"]}
    assert list(rows) == [
        (OURS, PLAIN),
        (OURS, "lookup"),
        *(("fake", mode) for mode in ("plain", "right", "late", "broken", "short", "absent")),
        ("bad", "plain"),
    ]
    assert len(kept[0]["rows"]) == 8  # after the first peer
    assert rows["fake", "broken"]["why"] == "ValueError: no such kernel"
    assert rows["fake", "short"]["why"] == "1 tokens came; expected 8"
    assert rows["fake", "absent"]["why"] == "SystemExit: not on this machine"
    assert rows["bad", "plain"]["why"] == record["peers"]["bad"]["error"] == "ended with exit code 3: no memory"
    for key in ((OURS, "lookup"), ("fake", "right")):
        assert (rows[key]["identical_to_own_plain"], rows[key]["equal_to_own_plain"]) == (True, 2)
    for key in ((OURS, PLAIN), ("fake", PLAIN)):
        assert rows[key]["identical_to_own_plain"] is rows[key]["times_own_plain"] is None
    assert rows["fake", "plain"]["equal_to_ours"] == 2
    assert rows["fake", "plain"]["like_ours"] == NEW
    late = rows["fake", "late"]
    assert (late["identical_to_own_plain"], late["equal_to_own_plain"], late["equal_to_ours"]) == (False, 1, 1)
    assert late["like_ours"] == 4.5  # 6 and 3
    right = record["rows"][0]
    assert late["first_difference"]["prompt"] == "p1"
    assert late["first_difference"]["position"] == 3
    assert late["first_difference"]["token"] == late["first_difference"]["plain_token"] + 1
    assert right["times_our_plain"] == 1.0
    assert right["times_our_plain_interval"] == [1.0, 1.0]
    assert record["peers"]["fake"]["versions"] == {"fake": "1.0"}
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    assert read(tmp_path / "record.json") == json.loads(json.dumps(record))
    text = table(json.loads(json.dumps(record)))
    assert "bad plain did not run: ended with exit code 3: no memory" in text
    assert "fake late leaves its own plain decoding in 1 of 2 prompts, first in p1 at token 4." in text
    assert text.count("NO, 1 of 2") == 1
    disturbed = [{**row, "why": "it was disturbed", "ms_per_token": None} for row in record["rows"][:5]]
    text = table(json.loads(json.dumps({**record, "rows": disturbed})))
    assert "- fake right has no times: it was disturbed. As its own plain: yes, 2 of 2." in text
    assert "- fake late has no times: it was disturbed. As its own plain: NO, 1 of 2." in text
    assert "fake late leaves its own plain decoding in 1 of 2 prompts, first in p1 at token 4." in text
    rows = json.loads(json.dumps(record["rows"]))
    for broken, said in (
        ({"rows": [{}]}, "engine is absent, expected text"),
        ({"rows": 3}, "rows is 3, expected a list"),
        ({"suite": None}, "suite is None, expected an object"),
        ({"peers": {"x": []}}, "x is \\[\\], expected an object"),
        ({"rows": [{**rows[0], "our_best_times": 10**400}]}, "our_best_times is 1000.*, expected a number or null"),
        ({"rows": [{**rows[0], "ms_per_token": None}]}, "ms_per_token is None, expected a number"),
        ({"rows": [{**rows[0], "times_our_plain_interval": [1]}]}, "expected two numbers"),
    ):
        (tmp_path / "broken.json").write_text(json.dumps({**record, **broken}), encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read(tmp_path / "broken.json")
    assert (tmp_path / "copy").read_text(encoding="utf-8") == "made"


@pytest.mark.usefixtures("steady")
def test_turns_alternate_and_only_plain_decoding_is_asked_for_one_token(
    asking: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int, int]] = []  # who, length of the prompt, new tokens
    ours, ask = measuring._ours, PeerProcess.ask

    def asked_peer(self: PeerProcess, mode: str, tokens: tuple[int, ...], count: int) -> tuple[list[int], float]:
        events.append((mode, len(tokens), count))
        return ask(self, mode, tokens, count)

    def asked_us(model: Any) -> measuring.Generate:
        generate = ours(model)

        def told(tokens: tuple[int, ...], count: int) -> tuple[Sequence[int], float]:
            events.append((f"our {model.draft}", len(tokens), count))
            return generate(tokens, count)

        return told

    monkeypatch.setattr(PeerProcess, "ask", asked_peer)
    monkeypatch.setattr(measuring, "_ours", asked_us)
    asked = measuring.Asked(peers=[peer_of(tmp_path, GOOD)], modes=["right"], **asking)
    record = measuring.measure(asked)
    warm_up, turns = events[:4], events[4:]
    assert [who for who, _, _ in warm_up] == ["our none", "our lookup", "plain", "right"]
    ours = [("our none", 1), ("our none", NEW), ("our lookup", NEW)]
    theirs = [("plain", 1), ("plain", NEW), ("right", NEW)]
    assert turns == [
        (who, length, count)
        for repeat in range(2)
        for number, prompt in enumerate(PROMPTS)  # every second one the other way round, and so in the next repeat
        for who, count in ([*ours, *theirs] if (repeat + number) % 2 == 0 else [*theirs, *ours])
        for length in [len(prompt)]
    ]
    rows = record["rows"]
    assert rows[0]["ms_per_token"] == 10.0  # the six tokens' 60 ms without the prompt's 10, by five tokens
    assert rows[0]["ms_per_token_with_prompt"] == 10.0
    assert rows[0]["prompt_ms"] == 10.0


def test_a_row_is_what_its_samples_say() -> None:
    def sample(engine: str, mode: str, prompt: str, repeat: int, seconds: float, last: int = 3) -> Sample:
        return Sample(engine, mode, "x", prompt, repeat, (1, 2, last), seconds, 0.5)

    samples = [
        *(sample(OURS, PLAIN, prompt, repeat, 2.5) for prompt in "ab" for repeat in (0, 1)),  # a second a token
        *(sample("x", PLAIN, "a", repeat, 4.5) for repeat in (0, 1)),
        *(sample("x", PLAIN, "b", repeat, 8.5) for repeat in (0, 1)),
        *(sample("x", "fast", "a", repeat, seconds) for repeat, seconds in enumerate((1.5, 2.5))),
        *(sample("x", "fast", "b", repeat, 1.5, last=9 + repeat) for repeat in (0, 1)),
    ]
    found = row(Way("x", "fast", "", PLAIN), samples)
    assert found.ms_per_token == pytest.approx(1e3 * (0.75 + 0.5) / 2)
    assert found.times_our_plain == pytest.approx((1.5 + 2.0) / 2)
    assert found.times_own_plain == pytest.approx((3.0 + 8.0) / 2)  # a: 4 and 2 times; b: 8
    assert found.times_own_plain_interval is not None
    assert found.times_own_plain_interval == pytest.approx((3.0, 8.0))
    assert (found.equal_to_own_plain, found.identical_to_own_plain, found.repeatable) == (1, False, False)
    assert found.first_difference == {"prompt": "b", "repeat": 0, "position": 2, "token": 9, "plain_token": 3}
    assert (found.our_best, found.our_best_times) == (PLAIN, 0.625)  # a: 0.5 and 1 times; b: 0.5
    assert found.like_ours == 2.5
    assert row(Way("x", PLAIN, ""), samples).times_our_plain == pytest.approx((0.5 + 0.25) / 2)
    disturbed = [replace(s, prompt_seconds=9.0) if s.repeat == 2 else s for s in (*samples, *_again(samples))]
    assert row(Way("x", "fast", "", PLAIN), disturbed).ms_per_token == found.ms_per_token
    assert found.disturbed == 0
    assert row(Way("x", "fast", "", PLAIN), [replace(s, prompt_seconds=2.0) for s in samples]).disturbed == 3
    untimed = row(Way("x", "fast", "", PLAIN), [replace(s, prompt_seconds=9.0) for s in samples])
    assert untimed.why == "it was disturbed in every turn; measure it again"
    kept = ("prompts", "tokens", "identical_to_own_plain", "equal_to_own_plain", "first_difference", "equal_to_ours")
    kept = (*kept, "like_ours", "repeatable")
    assert [getattr(untimed, name) for name in kept] == [getattr(found, name) for name in kept]
    assert untimed.disturbed == len([s for s in samples if s.mode == "fast"])
    assert untimed.ms_per_token is untimed.times_our_plain is untimed.times_own_plain is None


def _again(samples: Sequence[Sample]) -> list[Sample]:
    return [replace(s, repeat=2) for s in samples if s.repeat == 0] + [
        replace(s, repeat=3) for s in samples if s.repeat
    ]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_new_tokens": 1}, SettingError, "max_new_tokens is 1, expected a whole number, 2 or more"),
        ({"repeats": 0}, SettingError, "repeats is 0, expected a whole number, 1 or more"),
        ({"timeout": 0.0}, SettingError, "timeout is 0, expected seconds, more than 0"),
        ({"max_new_tokens": 5000}, SettingError, "prompt p0 has 20 tokens, and with 5000 new ones the model has room"),
        ({"drafts": ["lokup"]}, DraftSpecError, "lokup"),
        ({"prompts": "nothing.jsonl"}, InputError, "there is no file 'nothing.jsonl'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_peer_starts(
    changes: dict[str, Any], error: type[Exception], message: str, asking: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        measuring.measure(measuring.Asked(peers=[peer_of(tmp_path, "")], **{**asking, **changes}))
    assert not (tmp_path / "fake.log").exists()


def test_a_token_that_the_model_does_not_know_is_refused_before_a_peer_starts(
    asking: dict[str, Any], tmp_path: Path
) -> None:
    Path(asking["prompts"]).write_text(json.dumps({"id": "p", "prompt_tokens": [1, 4096]}) + "\n", encoding="utf-8")
    with pytest.raises(SettingError, match="prompt p: the prompt holds token 4096; the model has tokens 0 to 4095"):
        measuring.measure(measuring.Asked(peers=[peer_of(tmp_path, "")], **asking))
    assert not (tmp_path / "fake.log").exists()


@pytest.mark.usefixtures("steady")
@pytest.mark.prove
def test_transformers_says_what_we_say(asking: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    source = load("stdlib-1m", draft="none").folder
    for file in source.iterdir():
        os.symlink(file, folder / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").unlink()
    config["dtype"] = "float32"  # in which nothing comes near to a tie
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    given = {**asking, "model": str(folder), "repeats": 1, "peer_draft": "stdlib-1m"}
    found = environment("transformers", tmp_path)
    asked = measuring.Asked(peers=[found], loading=LoadSettings(dtype="float32", threads=1), **given)
    rows = {(row["engine"], row["mode"]): row for row in measuring.measure(asked)["rows"]}
    assert set(rows) == {(OURS, PLAIN), (OURS, "lookup"), *(("transformers", m) for m in (PLAIN, "lookup", "assisted"))}
    for mode in (PLAIN, "lookup", "assisted"):
        assert rows["transformers", mode]["why"] is None
        assert rows["transformers", mode]["equal_to_ours"] == 2
    assert rows["transformers", "assisted"]["identical_to_own_plain"] is True


@pytest.mark.usefixtures("steady")
def test_the_command_measures_writes_and_shows(
    cli: Cli, asking: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS, "fake", peer_of(tmp_path, GOOD).peer)
    given = ["--model", "stdlib-1m", "--prompts", asking["prompts"], "--draft", "lookup", "--max-new-tokens", NEW]
    ran = cli("bench", "peers", "run", "--peer", "fake", "--repeats", 1, *given, "--json", tmp_path / "r.json")
    assert ran.code == 0, ran.err
    assert "fake" in ran.out
    assert "starting fake" in ran.err
    assert read(tmp_path / "r.json")["suite"]["prompts"] == 2
    listed = cli("bench", "peers", "list", "--into", tmp_path)
    assert "fake          in Foretoken's own environment" in listed.out
    assert "vllm          not installed" in listed.out
    report = cli("bench", "report", tmp_path / "r.json", "--out", tmp_path / "report.md")
    assert report.code == 0, report.err
    for arguments, message in (
        (["run", "--peer", "vlm"], "there is no peer 'vlm'; did you mean 'vllm'"),
        (["run", "--peer", "vllm", "--into", tmp_path], "peer 'vllm' is not there"),
        (["run", "--work", "/dev/null/no"], "no folder /dev/null/no for what peers convert can be made"),
        (["install", "vlm"], "there is no peer 'vlm'"),
    ):
        refused = cli("bench", "peers", *arguments)
        assert refused.code == 2
        assert message in refused.err
