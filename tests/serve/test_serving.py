"""Many requests at once: who waits, who leaves, what fails, and what is told of it."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any
from urllib.parse import urlparse

import pytest

import foretoken
from foretoken.errors import NumericsError
from foretoken.loop.engine import Engine
from foretoken.protocol.types import Verdict
from foretoken.serve.limits import Limits
from foretoken.serve.logs import FORMS, _Lines
from foretoken.serve.server import Server, ServerSettings
from tests.serve.served import PROMPT, SAMPLED, Served, serving, truth

LONG = 1900  # tokens: more than a test waits for


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as its:
        yield its


def until(what: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Connection:
    """A connection that may be hung up in the middle of an answer."""

    def __init__(self, served: Served, **body: Any) -> None:
        place = urlparse(served.url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        whole = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "draft": "none", **body}
        self._connection.request(
            "POST", "/v1/completions", json.dumps(whole).encode(), {"content-type": "application/json"}
        )

    def line(self) -> bytes:
        self._answer = self._connection.getresponse()
        return self._answer.readline()

    def hang_up(self) -> None:
        self._connection.close()


def test_a_body_that_curl_calls_a_form_is_read_as_json(served: Served) -> None:
    place = urlparse(served.url)
    body = json.dumps({"prompt": PROMPT, "max_tokens": 3, "temperature": 0}).encode()
    answers = []
    for kind in ("application/json", "application/x-www-form-urlencoded", None):
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        connection.request("POST", "/v1/completions", body, {} if kind is None else {"content-type": kind})
        answer = connection.getresponse()
        assert answer.status == 200, kind
        answers.append(json.loads(answer.read())["choices"][0]["text"])
        connection.close()
    assert len(set(answers)) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_away_leaves_between_two_rounds(served: Served, stream: bool) -> None:
    worker = served.server.worker
    connection = Connection(served, stream=stream)
    if stream:
        assert connection.line().startswith(b"data: ")
    until(lambda: worker.running and worker.running[0].written > 3)
    (asked,) = worker.running
    connection.hang_up()
    until(lambda: not worker.running)
    assert asked.written < LONG
    assert worker.positions == 0
    assert served.complete()["choices"][0]["text"] == truth(max_new_tokens=24).text
    assert 'request_success_total{engine="0",finished_reason="abort"' in served.ask("/metrics").body.decode()


def test_who_goes_away_while_waiting_is_never_begun() -> None:
    with serving(limits={"sequences": 1}) as served:
        worker = served.server.worker
        first = Connection(served)
        until(lambda: worker.running)
        second = Connection(served)
        until(lambda: worker.waiting == 1)
        second.hang_up()
        until(lambda: worker.waiting == 0)
        first.hang_up()
        until(lambda: not worker.running)


def test_requests_join_in_order_and_too_many_are_told_to_come_again() -> None:
    with serving(limits={"sequences": 2, "waiting": 1}) as served:
        worker = served.server.worker
        running = [Connection(served) for _ in range(2)]
        until(lambda: len(worker.running) == 2)
        waiting = Connection(served)
        until(lambda: worker.waiting == 1)
        answer = served.ask("/v1/completions", {"prompt": PROMPT})
        assert answer.status == 429
        assert answer.error["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) > 0
        running[0].hang_up()
        until(lambda: worker.waiting == 0)
        assert len(worker.running) == 2
        for each in (running[1], waiting):
            each.hang_up()
        until(lambda: not worker.running)


def test_what_has_begun_can_be_finished_whatever_waits() -> None:
    """Memory is reserved: with room for 150 positions, texts of up to 64 + 17 of them go on one at a time."""
    with serving(limits={"positions": 150}) as served, ThreadPoolExecutor(4) as pool:
        most = 0
        done = threading.Event()

        def look() -> None:
            nonlocal most
            while not done.is_set():
                most = max(most, served.server.worker.positions)
                time.sleep(0.001)

        looking = pool.submit(look)
        texts = [served.complete] * 3
        answers = [pool.submit(each, max_tokens=64, draft="none") for each in texts]
        expected = truth(max_new_tokens=64).text
        assert all(each.result()["choices"][0]["text"] == expected for each in answers)
        done.set()
        looking.result()
        assert 64 < most <= 150
        refused = served.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 200})
        assert refused.status == 400
        assert "may need memory for 2" in refused.error["message"]


def test_a_text_that_fails_ends_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step

    def failing(self: Engine) -> list[Verdict]:
        verdicts = step(self)
        return [
            Verdict(v.sequence, v.round, v.position, (), (), (), error=NumericsError("a NaN came"))
            if self._live.get(v.sequence) is not None and self._live[v.sequence].request.max_new_tokens == 99
            else v
            for v in verdicts
        ]

    monkeypatch.setattr(Engine, "step", failing)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(served.complete, max_tokens=40) for _ in range(2)]
        whole = pool.submit(served.ask, "/v1/completions", {"prompt": PROMPT, "max_tokens": 99})
        streamed = pool.submit(served.ask, "/v1/completions", {"prompt": PROMPT, "max_tokens": 99, "stream": True})
        assert all(each.result()["choices"][0]["text"] == truth(max_new_tokens=40).text for each in others)
        assert whole.result().status == 500
        assert whole.result().error["message"] == "a NaN came"
        *_, last = streamed.result().events
        assert last["error"]["message"] == "a NaN came"
    assert served.server.worker.positions == 0


def test_a_round_that_fails_as_a_whole_fails_its_texts_and_no_later_ones(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Engine) -> list[Verdict]:
        raise MemoryError("secrets of the inside")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", broken)
        answer = served.ask("/v1/completions", {"prompt": PROMPT})
    assert answer.status == 500
    assert answer.error["message"] == "the server failed; its log says why"
    assert "secrets of the inside" in caplog.text
    assert served.complete()["choices"][0]["text"] == truth(max_new_tokens=24).text


def test_a_server_that_ends_lets_texts_be_finished() -> None:
    with serving() as served, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.complete, max_tokens=60)
        until(lambda: served.server.worker.running)
        served.server.stop()
        assert answer.result()["choices"][0]["text"] == truth(max_new_tokens=60).text


def test_a_server_that_ends_does_not_wait_for_ever() -> None:
    with serving() as served:
        connection = Connection(served, stream=True, max_tokens=1500)
        assert connection.line().startswith(b"data: ")
    connection.hang_up()


def test_a_loop_that_ends_tells_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, too, so that whoever supervises it can start it again."""
    loaded = foretoken.load("stdlib-1m", draft="none")
    server = Server(loaded, ServerSettings(port=0, drain=1.0), Limits.of(loaded, 4, 4, None))
    addresses: Queue[str] = Queue()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            server.run(addresses.put)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    served = Served(server, addresses.get(timeout=60))
    monkeypatch.setattr(server.worker, "_admit", lambda: 1 / 0)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(served.ask, "/v1/completions", {"prompt": PROMPT}) for _ in range(2)]
        assert {each.result().status for each in answers} <= {500, 503}
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(errors[0], ZeroDivisionError)


def test_who_is_left_when_the_server_ends_is_told(served: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": LONG, "n": 4, "temperature": 1.0, "ignore_eos": True, "draft": "none"}
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(served.ask, "/v1/completions", body)
        streamed = pool.submit(served.ask, "/v1/completions", {**body, "stream": True})
        until(lambda: len(served.server.worker.running) == 2)
        served.server.stop()
        assert whole.result().status == 503
        assert whole.result().error["message"].startswith("the server is about to end")
        assert streamed.result().events[-1]["error"]["type"] == "overloaded_error"


def test_nothing_of_a_request_is_logged_but_its_shape(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        served.complete(prompt="a_secret_word = ", user="somebody")
        lines: list[logging.LogRecord] = []  # it is logged when the answer has been sent
        until(lambda: lines.extend(each for each in caplog.records if each.name == "foretoken.serve.guard") or lines)
    line = lines[0]
    assert line.getMessage() == "POST /v1/completions"
    shape = line.__dict__["shape"]
    assert (shape["status"], shape["completion_tokens"]) == (200, 24)
    for form in FORMS:
        assert "completion_tokens" in _Lines(form).format(line)
        assert "secret" not in _Lines(form).format(line)
    assert "secret" not in caplog.text
    assert "somebody" not in caplog.text


def test_metrics_have_the_names_of_vllm() -> None:
    with serving(metrics="vllm", draft="lookup") as served:
        served.complete(max_tokens=40)
        served.complete(max_tokens=40, **SAMPLED)
        answer = served.ask("/metrics")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    read = len(foretoken.load("stdlib-1m").tokens_of(PROMPT))
    assert values["vllm:generation_tokens_total"] == 80
    assert values["vllm:prompt_tokens_total"] == 2 * read
    assert values["vllm:request_success_total"] == 2
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0
    assert values["vllm:inter_token_latency_seconds_count"] == 78
    assert values["vllm:time_to_first_token_seconds_count"] == values["vllm:e2e_request_latency_seconds_count"] == 2
    accepted, drafted = (f"vllm:spec_decode_num_{name}_tokens_total" for name in ("accepted", "draft"))
    assert 0 < values[accepted] <= values[drafted]
    assert not [name for name in values if name.endswith("_created")]


def test_what_is_under_way_is_told(served: Served) -> None:
    idle = served.ask("/v1/foretoken/status").json
    assert (idle["model"], idle["draft"], idle["levels"]) == ("stdlib-1m", "lookup", ["lookup"])
    assert (idle["running"], idle["waiting"], idle["chat"]) == ([], 0, False)
    connection = Connection(served)
    until(lambda: served.server.worker.running and served.server.worker.running[0].written)
    (its,) = served.ask("/v1/foretoken/status").json["running"]
    assert its["state"] == "decoding"
    assert its["prompt_tokens"] == its["read"]
    assert its["output_tokens"] > 0
    connection.hang_up()


def test_the_description_is_whole(served: Served) -> None:
    described = served.ask("/openapi.json").json
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models"} <= described["paths"].keys()
    page = served.ask("/docs").body.decode()
    assert "POST /v1/completions" in page
    assert "max_tokens" in page
    assert "//" not in page.replace("https://json-schema.org", "")  # nothing comes from elsewhere
    assert served.ask("/version").json["version"] == foretoken.__version__
    model = served.ask("/v1/models/stdlib-1m").json
    assert (model["id"], model["max_model_len"]) == ("stdlib-1m", 2048)
    assert served.ask("/health").status == served.ask("/ping").status == 200


def test_tokens_go_there_and_back(served: Served) -> None:
    there = served.ask("/tokenize", {"prompt": PROMPT, "return_token_strs": True}).json
    assert there["count"] == len(there["tokens"]) == len(there["token_strs"])
    assert there["tokens"] == list(foretoken.load("stdlib-1m").tokens_of(PROMPT))
    assert served.ask("/detokenize", {"tokens": there["tokens"]}).json == {"prompt": PROMPT}
