"""Streamers get tokens as transformers hands them on, and are ended whatever happens."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
import transformers

import foretoken
from foretoken.api.build import load
from foretoken.errors import ModelError, SettingError
from tests.integrations.asking import Stream
from tests.integrations.theirs import attached, model_of, prompts


def test_streamers_get_the_prompt_and_then_token_by_token() -> None:
    seen = []
    for make in (attached, model_of):
        stream = Stream()
        make().generate(**prompts(6), max_new_tokens=30, eos_token_id=None, streamer=stream)
        seen.append((stream.put_in, stream.ends))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 31


def test_a_streamer_is_ended_whatever_happens() -> None:
    stream = Stream(fails=True)
    with pytest.raises(RuntimeError, match="nobody listens"):
        attached().generate(**prompts(6), max_new_tokens=30, streamer=stream)
    assert stream.ends == 1
    stream = Stream()
    with pytest.raises(SettingError, match="num_beams"):
        attached().generate(**prompts(6), num_beams=2, streamer=stream)
    assert stream.ends == 1
    with pytest.raises(SettingError, match="a streamer takes one text, and here come 2"):
        attached().generate(**prompts(6, 4), max_new_tokens=3, streamer=Stream())


def test_a_streamer_is_ended_if_the_weights_have_changed() -> None:
    model, stream = attached(), Stream()
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    with pytest.raises(ModelError):
        model.generate(**prompts(6), max_new_tokens=3, streamer=stream)
    assert stream.ends == 1


def test_an_iterator_in_a_thread_gives_the_text() -> None:
    known = load("stdlib-1m", draft="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(known.folder)
    model = foretoken.attach(transformers.AutoModelForCausalLM.from_pretrained(known.folder), draft="lookup")
    asked = tokenizer("def add(self, other):", return_tensors="pt", return_token_type_ids=False)
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = Thread(target=model.generate, kwargs={**asked, "max_new_tokens": 40, "streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    (done,) = model.generate.completions
    assert "".join(pieces) == tokenizer.decode(done.tokens)
    assert len(pieces) > 3
