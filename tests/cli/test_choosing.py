"""The options of `generate` that say how tokens are chosen and where the text ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import foretoken
from tests.cli.conftest import Cli

MODEL = ("--model", "stdlib-1m")
PROMPT = "import os\nimport"
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        (
            ("--temperature", 0.9, "--top-k", 30, "--top-p", 0.9, "--min-p", 0.01, "--seed", 7),
            {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "seed": 7},
        ),
        (
            ("--repetition-penalty", 1.5, "--presence-penalty", 1, "--frequency-penalty", -0.5),
            {"repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -0.5},
        ),
        (("--logit-bias", "5=2.5", "--logit-bias", "300=-1e2"), {"logit_bias": {5: 2.5, 300: -100}}),
        (("--stop", "\n", "--stop", "as "), {"stop": ["\n", "as "]}),
        (("--regex", " [a-z]+\n"), {"regex": " [a-z]+\n"}),
        (("--json-schema", SCHEMA), {"json_schema": SCHEMA}),
        (("--temperature", 1, "--seed", 2**64 - 1, "--rule", "rejection"), {"temperature": 1, "seed": 2**64 - 1}),
    ],
)
def test_every_option_reaches_the_model(cli: Cli, args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    ran = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 16, "--json", *args)
    assert (ran.code, ran.err) == (0, "")
    rule = "rejection" if "rejection" in args else "walk"
    done = foretoken.load("stdlib-1m", rule=rule).generate(PROMPT, max_new_tokens=16, **settings)
    told = json.loads(ran.out)
    for name in ("tokens", "text", "finish_reason", "stop_string", "seed", "promise"):
        assert told[name] == (list(done.tokens) if name == "tokens" else getattr(done, name))


def test_a_schema_may_be_in_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA, encoding="utf-8")
    outs = [cli("generate", "x", *MODEL, "--json-schema", schema).out for schema in (file, SCHEMA, f"\n {SCHEMA}")]
    assert outs[0] == outs[1] == outs[2]
    assert isinstance(json.loads(outs[0])["a"], int)


def test_a_grammar_is_in_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "grammar.lark"
    file.write_text('start: "<" /[a-z]{3}/ ">"\n', encoding="utf-8")
    assert re.search("<[a-z]{3}>$", cli("generate", "x", *MODEL, "--grammar", file).out.strip())


def test_the_seed_that_was_drawn_is_told_and_gives_the_same_again(cli: Cli) -> None:
    sampled = ("generate", PROMPT, *MODEL, "--max-new-tokens", 12, "--temperature", 1)
    first, other = cli(*sampled), cli(*sampled)
    seeds = [re.search(r"; seed (\d+)$", ran.err, re.MULTILINE) for ran in (first, other)]
    assert seeds[0] is not None
    assert seeds[1] is not None
    assert seeds[0][1] != seeds[1][1]
    again = cli(*sampled, "--seed", seeds[0][1], "--draft", "none")
    assert again.out == first.out
    assert f"; seed {seeds[0][1]}\n" in again.err
    assert "seed" not in cli("generate", PROMPT, *MODEL, "--max-new-tokens", 2).err


def test_several_completions_come_one_after_the_other(cli: Cli) -> None:
    asked = ("generate", PROMPT, *MODEL, "--max-new-tokens", 9, "--temperature", 1, "--seed", 3, "--n", 3, "--audit")
    ran = cli(*asked)
    assert ran.code == 0
    completions = foretoken.load("stdlib-1m").completions(PROMPT, max_new_tokens=9, temperature=1, seed=3, n=3)
    assert len({done.text for done in completions}) == 3
    texts = [done.text if done.text.endswith("\n") else f"{done.text}\n" for done in completions]
    assert ran.out == "".join(f"== {i} of 3\n{text}" for i, text in enumerate(texts, 1))
    assert ran.err.count("; seed 3\n") == 3
    told = ran.err.splitlines()
    assert [line[: line.index("tokens")] for line in told[::2]] == [f"-- {i} of 3: 9 " for i in (1, 2, 3)]
    assert told[1::2] == [f"-- {i} of 3: audit: identical, 9 tokens" for i in (1, 2, 3)]
    lines = [json.loads(line) for line in cli(*asked, "--json").out.splitlines()]
    assert [line["tokens"] for line in lines] == [list(done.tokens) for done in completions]
    assert all(line.keys() == lines[0].keys() and line["audit"]["identical"] for line in lines)


def test_log_probabilities_are_told(cli: Cli) -> None:
    ran = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 3, "--logprobs", 2)
    done = foretoken.load("stdlib-1m").generate(PROMPT, max_new_tokens=3, logprobs=2)
    assert done.logprobs is not None
    lines = ran.err.splitlines()[1:]
    assert len(lines) == 3
    for line, found in zip(lines, done.logprobs, strict=True):
        assert re.fullmatch(
            rf"-- '.+' {re.escape(f'{found.logprob:.3f}')} \(likeliest: '.+' -\d+\.\d+, '.+' -\d+\.\d+\)", line
        )
    alone = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 3, "--logprobs", 0).err.splitlines()[1:]
    assert [re.fullmatch(r"-- '.+' -\d+\.\d+", line) is not None for line in alone] == [True] * 3
    told = json.loads(cli("generate", PROMPT, *MODEL, "--max-new-tokens", 3, "--logprobs", 2, "--json").out)["logprobs"]
    assert told == [
        {"token": found.token, "logprob": found.logprob, "top": [list(pair) for pair in found.top]}
        for found in done.logprobs
    ]


def test_a_stop_string_is_told(cli: Cli) -> None:
    ran = cli("generate", PROMPT, *MODEL, "--stop", "\n")
    assert "ended by stop ('\\n'); promise: exact" in ran.err
    assert ran.out.count("\n") == 1


def test_what_changes_nothing_is_told(cli: Cli) -> None:
    ran = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 2, "--top-p", 0.5, "--seed", 3)
    assert ran.code == 0
    assert ran.err.endswith("-- decoding was greedy, so --top-p, --seed changed nothing; give --temperature\n")
    ran = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 2, "--rule", "rejection")
    assert ran.err.endswith("-- decoding was greedy, so --rule changed nothing; give --temperature\n")
    assert cli("generate", PROMPT, *MODEL, "--max-new-tokens", 2, "--temperature", 1, "--seed", 3).err.count("\n") == 1


def test_a_number_of_draft_tokens_without_a_draft_changes_nothing_and_that_is_told(cli: Cli) -> None:
    asked = ("generate", PROMPT, *MODEL, "--max-new-tokens", 2, "--num-speculative-tokens", 3)
    told = "-- nothing drafts, so --num-speculative-tokens changed nothing; give --draft\n"
    ran = cli(*asked, "--draft", "none")
    assert (ran.code, ran.err.count("\n")) == (0, 2)
    assert ran.err.endswith(told)
    assert cli(*asked).err.count("\n") == 1
    assert cli(*asked, "--draft", "none", "--json").err == ""


def test_what_was_sampled_is_recorded_and_verified(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    chosen = ("--temperature", 0.8, "--repetition-penalty", 1.1, "--logit-bias", "5=1", "--stop", "\n\n")
    made = cli("generate", PROMPT, *MODEL, "--max-new-tokens", 12, *chosen, "--record", path, "--draft", "stdlib-1m")
    assert made.code == 0
    for draft in ("none", "lookup", "stdlib-1m:k=2:depth=3"):
        ran = cli("verify", path, "--draft", draft)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("verified: ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--temperature", "-1"), "temperature is -1.0, expected 0 (greedy), or a number, 0.001 to 100"),
        (("--temperature", "nan"), "temperature is nan, expected 0 (greedy), or a number"),
        (("--temperature", "hot"), "Invalid value for '--temperature'"),
        (("--top-k", "-1"), "top_k is -1, expected a whole number, 0 to"),
        (("--top-p", "0"), "top_p is 0.0, expected a number, above 0 to 1"),
        (("--min-p", "2"), "min_p is 2.0, expected a number, 0 to 1"),
        (("--repetition-penalty", "0"), "repetition_penalty is 0.0, expected a number, 0.01 to 100"),
        (("--presence-penalty", "inf"), "presence_penalty is inf, expected a number, -100 to 100"),
        (("--seed", "-1"), "seed is -1, expected a whole number, 0 to"),
        (("--seed", str(2**64)), f"seed is {2**64}, expected a whole number, 0 to"),
        (("--n", "0"), "n is 0, expected a whole number, 1 or more"),
        (("--n", "257"), "n is 257, expected at most 256"),
        (("--logprobs", "101"), "logprobs is 101, expected a whole number, 0 to 100"),
        (("--stop", ""), "foretoken: stop is '', expected a text or several, none of them empty\n"),
        (("--stop", "x", "--stop", ""), "foretoken: stop is '', expected a text or several, none of them empty\n"),
        (("--logit-bias", "5"), "--logit-bias is '5', expected ID=NUMBER, such as 198=-5"),
        (("--logit-bias", "x=1"), "--logit-bias is 'x=1', expected ID=NUMBER"),
        (("--logit-bias", "5=e"), "--logit-bias is '5=e', expected ID=NUMBER"),
        (("--logit-bias", "5=1", "--logit-bias", "5=2"), "--logit-bias names token 5 twice; name it once"),
        (("--logit-bias", "5=1e9"), "the logit_bias of token 5 is 1000000000.0, expected a number, -1000 to 1000"),
        (("--logit-bias", "99999=1"), "logit_bias names token 99999; the model has tokens 0 to 4095"),
        (("--rule", "rejection", "--promise", "exact"), "promise is 'exact', but rule is 'rejection', which keeps"),
        (("--rule", "luck"), "rule is 'luck' (known: rejection, walk)"),
        (("--regex", "("), "regex"),
        (("--regex", "a", "--json-schema", "{}"), "regex and json_schema were both given; give one of them"),
        (("--grammar", "/nowhere"), "the grammar '/nowhere' cannot be read (No such file or directory); name a file"),
        (("--json-schema", "/nowhere"), "the schema '/nowhere' cannot be read (No such file or directory); name"),
        (("--json-schema", "/"), "the schema '/' cannot be read (Is a directory); name a file"),
        (("--json-schema", "x" * 300), f"the schema '{'x' * 77}…' cannot be read (File name too long); name a file"),
        (("--json-schema", '{"type": "nonsense"}'), "nonsense"),
        (("--json-schema", "{"), "json_schema"),
        (("--n", "2", "--show-origins"), "--show-origins is for one completion, and --n is 2; leave one of them out"),
        (("--n", "2", "--record", "x.json"), "--record is for one completion, and --n is 2; leave one of them out"),
        (
            ("--plot", "x.svg", "--record", "./x.svg"),
            "--record and --plot both name x.svg; give each a file of its own",
        ),
        (
            ("--rule", "rejection", "--temperature", "1", "--audit"),
            "an audit needs tokens that come again, and rule 'rejection' keeps their distribution only",
        ),
        (
            ("--rule", "rejection", "--temperature", "1", "--record", "x.json"),
            "a record needs tokens that come again, and rule 'rejection' keeps their distribution only",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    cli: Cli, args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("generate", "x", *MODEL, *args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_mark_that_some_editors_put_before_a_text_is_none_of_it(cli: Cli, tmp_path: Path) -> None:
    texts = []
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "prompt.txt").write_bytes(mark + b"def add(a, b):")
        ran = cli("generate", *MODEL, "--prompt-file", tmp_path / "prompt.txt", "--max-new-tokens", 8, "--json")
        texts.append({name: json.loads(ran.out)[name] for name in ("text", "prompt_tokens")})
    assert texts[0] == texts[1]


def test_a_schema_that_is_no_text_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schema").write_bytes(b"\xff")
    ran = cli("generate", "x", *MODEL, "--json-schema", tmp_path / "schema")
    assert ran.code == 2
    assert "is not UTF-8 (byte 0); expected text" in ran.err


def test_help_is_in_groups(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("generate", "chat"):
        told = cli(command, "--help").out
        groups = ("Model and draft", "Length and end", "Sampling", "Form of the output")
        places = [told.index(group) for group in groups]
        assert places == sorted(places)
