"""What cannot be served is refused with OpenAI's error body and one clear sentence, before anything is computed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import foretoken
from foretoken.errors import AwayError, SettingError
from foretoken.serve.answering import Answering
from foretoken.serve.server import ServerSettings, keys_of
from tests.serve.served import PROMPT, Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits={"context": 100, "body": 50_000}) as its:
        yield its


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": 7}, "prompt", "prompt"),
    ({"prompt": ""}, None, "the prompt is empty; expected at least one token"),
    ({"prompt": []}, None, "the prompt is empty; expected at least one token"),
    ({"prompt": "é" * 300}, None, "has at most 100 with what follows; shorten the prompt"),
    ({"prompt": [5, 999_999]}, None, "the prompt holds token 999999; the model has tokens 0 to"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, expected 1 or more"),
    ({"max_tokens": "7"}, "max_tokens", "max_tokens is '7': input should be a valid integer"),
    ({"temperature": -1}, "temperature", "temperature is -1"),
    ({"temperature": "hot"}, "temperature", "temperature is 'hot': input should be a valid number"),
    ({"top_p": 0}, "top_p", "top_p is 0.0, expected a number, above 0 to 1"),
    ({"n": 0}, "n", "n is 0, expected a whole number, 1 or more"),
    ({"n": 17}, None, "n is 17, and at most 16 texts are generated at once"),
    ({"n": 10**30}, "n", "n is 1000000000000000000000000000000, expected at most 256"),
    ({"logprobs": 101}, "logprobs", "logprobs is 101, expected a whole number, 0 to 100"),
    ({"stop": ["a", ""]}, "stop", "stop is '', expected a text or several, none of them empty"),
    ({"stop": ["a"] * 17}, "stop", "it holds 17 texts, expected at most 16"),
    ({"seed": 2**70}, "seed", "seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias names token 'x', expected a number"),
    ({"logit_bias": {"9999999": 1}}, None, "logit_bias names token 9999999; the model has tokens 0 to"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "stop_token"),
    ({"stream": "yes"}, "stream", "stream is 'yes': input should be a valid boolean"),
    ({"stream_options": 3}, "stream_options", "stream_options is 3: input should be"),
    ({"suffix": "x"}, "suffix", "suffix is 'x', and is not served here; leave it out"),
    ({"best_of": 3}, "best_of", "best_of is 3, and is not served here; leave it out"),
    ({"min_tokens": 3}, "min_tokens", "min_tokens is 3, and is not served here; leave it out"),
    ({"draft": "mxfp4"}, "draft", "draft is 'mxfp4', expected none or a level of this server's (none, lookup)"),
    ({"response_format": {"type": "xml"}}, "response_format", "response_format.type is 'xml'"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema without a schema"),
    ({"structured_outputs": {}}, "structured_outputs", "structured_outputs has 0 forms, expected one"),
    ({"structured_outputs": {"regex": "("}}, None, "("),
    ({"model": "gpt-4"}, "model", "the model 'gpt-4' is not served here; this server has stdlib-1m"),
    ({"stream": True, "echo": True, "logprobs": 1}, "stream", "echo cannot be streamed"),
]


@pytest.mark.parametrize(("body", "param", "message"), WRONG, ids=[str(body)[:40] for body, _, _ in WRONG])
def test_a_wrong_field_is_named(served: Served, body: dict[str, Any], param: str | None, message: str) -> None:
    answer = served.ask("/v1/completions", {"prompt": PROMPT, **body})
    assert answer.status == (404 if "model" in body else 400), answer.body
    assert message in answer.error["message"]
    assert answer.error["type"] == ("not_found_error" if "model" in body else "invalid_request_error")
    if param is not None and "stop_token_ids" not in body:
        assert answer.error["param"] == param
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", b"{", 400, "the body is not JSON"),
        ("/v1/completions", b"[1]", 400, ""),
        ("/v1/completions", b"[" * 40_000, 400, ""),
        ("/v1/completions", b'{"prompt": NaN}', 400, ""),
        ("/v1/completions", b"\xff\xfe", 400, ""),
        ("/v1/completions", {}, 400, "prompt is missing"),
        ("/v1/completions", b" " * 50_001, 413, "the request is larger than"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}]},
            400,
            "stdlib-1m has no chat template, so it cannot read messages; send a prompt to /v1/completions",
        ),
        ("/v1/responses", {"input": "x"}, 400, "has no chat template"),
        ("/tokenize", {}, 400, "give either a prompt or messages"),
        ("/detokenize", {"tokens": [-1]}, 400, "token -1 is none of the model's"),
        ("/v1/nothing", {}, 404, "there is nothing at /v1/nothing; /docs lists what there is"),
        ("/v1/models/gpt-4", None, 404, "the model 'gpt-4' is not served here"),
        ("/v1/completions", None, 405, "GET is not possible at /v1/completions"),
    ],
    ids=str,
)
def test_a_wrong_request_is_one_sentence(served: Served, path: str, body: Any, status: int, message: str) -> None:
    answer = served.ask(path, body)
    assert answer.status == status, answer.body
    assert message in answer.error["message"]


def test_a_body_without_a_length_is_bounded_too(served: Served) -> None:
    place = urlparse(served.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)

    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 5000

    headers = {"content-type": "application/json"}
    try:
        connection.request("POST", "/v1/completions", parts(), headers, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 413
        assert "larger than" in json.loads(answer.read())["error"]["message"]
    except (BrokenPipeError, ConnectionResetError):  # it hung up while the rest was sent
        pass
    finally:
        connection.close()
    assert served.complete(max_tokens=2)["choices"][0]["text"]


def test_what_nobody_knows_is_ignored_and_named(served: Served) -> None:
    answer = served.ask(
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 2, "user": "me", "n_predict": 7, "frobnicate": 1, "best_of": 1},
    )
    assert answer.status == 200
    assert answer.headers["x-foretoken-ignored"] == "frobnicate, n_predict"


def test_no_text_is_longer_than_the_servers_context(served: Served) -> None:
    answer = served.complete(max_tokens=500, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


def test_names_that_nobody_knows_write_no_headers_of_their_own(served: Served) -> None:
    many = {f"field{number:04}": 1 for number in range(3000)}
    answer = served.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "a\r\nx-injected: é": 1, **many})
    assert answer.status == 200
    named = answer.headers["x-foretoken-ignored"]
    assert named.startswith("a\\r\\nx-injected: ?, field0000, ")
    assert named.endswith("field0018 and 2981 more")
    assert "x-injected" not in answer.headers


def test_what_a_client_did_wrong_is_not_logged_as_a_fault_of_ours(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        for body in ({"prompt": ""}, {"prompt": [-1]}, {"prompt": "\ud800"}):
            assert served.ask("/v1/completions", body).status == 400
        assert served.ask("/health").status == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs cannot be streamed"),
        ("/v1/completions", {"request_id": "a\nb"}, "request_id is 'a\\nb'"),
        ("/v1/completions", {"reasoning_effort": "high"}, "reasoning_effort is 'high', and is not served here"),
        (
            "/v1/completions",
            {"guided_regex": "a"},
            "is not served here; use structured_outputs",
        ),
        ("/v1/completions", {"structured_outputs": {"regex": "("}, "stream": True}, "("),
        ("/v1/responses", {"input": [{"role": "user", "content": ["hi"]}]}, "this model reads text only"),
        ("/tokenize", {"prompt": "\ud800"}, "half a character"),
        ("/v1/completions", {"prompt": ["x"] * 100}, "the request has 100 prompts, and at most 80 may wait"),
    ],
    ids=str,
)
def test_what_once_went_wrong_is_refused(served: Served, path: str, body: dict[str, Any], message: str) -> None:
    answer = served.ask(path, {**({"prompt": PROMPT} if path == "/v1/completions" else {}), **body})
    assert answer.status == 400, answer.body
    assert message in answer.error["message"]


def test_under_the_rejection_rule_a_request_does_not_choose_its_draft() -> None:
    with serving(foretoken.load("stdlib-1m", draft="lookup", rule="rejection", pace="fixed")) as served:
        for body in ({"draft": "none"}, {"prediction": {"type": "content", "content": PROMPT}}):
            answer = served.ask("/v1/completions", {"prompt": PROMPT, "temperature": 0.8, **body})
            assert answer.status == 400
            assert "a text depends on its drafts" in answer.error["message"]
        assert served.complete(draft="none")["choices"]


def test_other_spellings_are_known(served: Served) -> None:
    body = {"prompt": PROMPT, "n_predict": 5, "temperature": 0, "repeat_penalty": 1.3}
    answer = served.ask("/v1/completions", body)
    same = served.complete(max_tokens=5, repetition_penalty=1.3)
    assert answer.json["choices"] == same["choices"]


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    with serving(keys=keys_of(file)) as served:
        for headers in (
            {},
            {"authorization": "Bearer three"},
            {"authorization": "two"},
            {"authorization": "Basic two"},
        ):
            for path, body in (("/v1/models", None), ("/metrics", None), ("/tokenize", {"prompt": "x"})):
                answer = served.ask(path, body, **headers)
                assert answer.status == 401
                assert answer.error["code"] == "invalid_api_key"
        assert served.ask("/v1/models", authorization="Bearer two").status == 200
        assert served.ask("/health").status == 200
        assert served.ask("/").status == 200  # it holds nothing of the model
    file.write_text("two words\n")
    with pytest.raises(SettingError, match="has a line with two words; expected one key in each line"):
        keys_of(file)
    file.write_text(" \n")
    with pytest.raises(SettingError, match="is empty; expected one key in each line"):
        keys_of(file)


def test_a_form_of_a_page_elsewhere_is_refused() -> None:
    """A browser sends a form without asking first, and no key is needed here."""
    page = {"origin": "http://evil.example", "content_type": "application/x-www-form-urlencoded"}
    body = {"prompt": "a", "max_tokens": 1}
    with serving(origins=("http://localhost:3000",)) as served:
        for site in ("cross-site", "same-site"):
            refused = served.ask("/v1/completions", body, sec_fetch_site=site, **page)
            assert refused.status == 403
            assert "a web page of 'http://evil.example' may not ask here" in refused.error["message"]
            named = served.ask("/v1/completions", body, sec_fetch_site=site, origin="http://localhost:3000")
            assert named.status == 200
        assert served.ask("/v1/completions", body, sec_fetch_site="same-origin", **page).status == 200


def test_top_k_may_be_left_open_as_in_vllm(served: Served) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1, "seed": 3}
    assert served.complete(**asked, top_k=-1)["choices"] == served.complete(**asked, top_k=0)["choices"]


@pytest.mark.parametrize(
    "host", ["localhost:8000", "LocalHost.", "chat.localhost", "127.0.0.1", "10.1.2.3:80", "[::1]:80"]
)
def test_a_server_without_keys_answers_to_addresses_and_to_localhost(served: Served, host: str) -> None:
    assert served.ask("/v1/models", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "[evil]"])
def test_a_name_that_leads_here_is_refused_unless_it_was_allowed(served: Served, host: str) -> None:
    for path in ("/v1/models", "/", "/v1/completions"):
        answer = served.ask(path, {"prompt": PROMPT} if "completions" in path else None, host=host)
        assert answer.status == 403
        assert "--allow-host" in answer.error["message"]


def test_with_a_key_or_for_other_machines_any_name_leads_to_a_server() -> None:
    for settings in (ServerSettings(keys=("k",)), ServerSettings(host="0.0.0.0"), ServerSettings(hosts=("a.example",))):
        assert settings.pages.refusal("GET", {b"host": b"A.example:80"}) is None
    assert ServerSettings(host="box").pages.names is None  # a name that others may know
    assert ServerSettings().pages.refusal("GET", {b"host": b"a.example"}) is not None
    assert ServerSettings().pages.refusal("GET", {}) is None  # HTTP/1.0


def test_a_host_that_is_gone_may_be_asked_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any) -> Any:
        raise AwayError("the host ws://there cannot be reached; start it")

    monkeypatch.setattr(Answering, "read", away)
    answer = served.ask("/v1/completions", {"prompt": PROMPT})
    assert answer.status == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.error["message"] == "the host ws://there cannot be reached; start it"
    assert "Traceback" not in caplog.text


def test_who_looks_whether_a_server_is_there_may_leave_the_body_out(served: Served) -> None:
    for path in ("/", "/health", "/ping"):
        answer = served.ask(path, method="HEAD")
        assert (answer.status, answer.body) == (200, b"")


def test_pages_elsewhere_may_ask_only_if_they_are_named() -> None:
    asked = {"origin": "http://localhost:3000", "access_control_request_method": "POST"}
    with serving(origins=("http://localhost:3000",)) as served:
        answer = served.ask("/v1/models", origin="http://localhost:3000")
        assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert served.ask("/v1/completions", method="OPTIONS", **asked).status == 200
    with serving() as served:
        answer = served.ask("/v1/models", origin="http://localhost:3000")
        assert "access-control-allow-origin" not in answer.headers
