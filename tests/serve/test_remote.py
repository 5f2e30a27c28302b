"""A server whose model is on a host: the page and the interface are here, and the model elsewhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.remote.served import client
from tests.remote.served import host as host
from tests.serve.served import SAMPLED, serving, truth

pytest.importorskip("websockets")


def test_texts_are_those_of_the_model_on_the_host(host: object) -> None:
    with serving(client(host, draft="lookup")) as served, ThreadPoolExecutor(3) as pool:
        bodies = [{"max_tokens": 20 + at, **(SAMPLED if at else {})} for at in range(3)]
        answers = list(pool.map(lambda body: served.complete(**body), bodies))
        for at, answer in enumerate(answers):
            assert answer["choices"][0]["text"] == truth(max_new_tokens=20 + at, **(SAMPLED if at else {})).text
            assert answer["foretoken"]["promise"] == "exact"
        events = served.stream(foretoken={"trace": True})
        assert "".join(choice["text"] for each in events for choice in each["choices"]) == truth(max_new_tokens=24).text
        refused = served.ask("/v1/completions", {"prompt": "x", "logprobs": 1})
        assert refused.status == 400
        assert "logits do not travel" in refused.error["message"]
        assert served.ask("/v1/foretoken/status").json["model"]
