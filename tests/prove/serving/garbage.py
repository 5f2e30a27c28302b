"""What no client should send: bytes that are no HTTP, and bodies that are no requests."""

from __future__ import annotations

import json
import random
from typing import Any


def _post(body: bytes, *more: bytes, path: bytes = b"/v1/completions") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"host: localhost", b"content-type: application/json", *more]
    if not any(each.lower().startswith((b"content-length", b"transfer-encoding")) for each in more):
        head.append(b"content-length: " + str(len(body)).encode())
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def bodies() -> list[bytes]:
    """Bodies that are no requests, or very odd ones."""
    usual: dict[str, Any] = {"prompt": "x", "max_tokens": 1}

    def odd(**more: Any) -> bytes:
        return json.dumps({**usual, **more}).encode()

    return [
        b"",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"prompt": "x", "max_tokens": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": -Infinity}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "stop": "\\udfff"}',
        b'{"prompt": "x", "model": "\\ud800"}',
        b'{"prompt": "x", "\\ud800": 1}',
        b'{"prompt": "x", "a\\r\\nx-injected: 1": 1, "max_tokens": 1}',
        b'{"prompt": "x", "request_id": "\\ud800", "max_tokens": 1}',
        b'{"prompt": "x", "request_id": "a\\r\\nb", "max_tokens": 1}',
        b'{"prompt": "x", "prompt": "y", "max_tokens": 1}',
        odd(**{f"field{at}": at for at in range(5_000)}),
        odd(**{"f" * 100_000: 1}),
        odd(user="\u2028\u0000"),
        odd(prompt=[10**30]),
        odd(prompt=[-1]),
        odd(prompt=[2**63]),
        odd(prompt=[[1], []]),
        odd(prompt=[True]),
        odd(prompt=["x"] * 5_000),
        odd(prompt="\u0000" * 10),
        odd(logit_bias={str(at): 1 for at in range(4_000)}),
        odd(logit_bias={"1": 1e308}),
        odd(stop_token_ids=[2**70]),
        odd(stop=["a" * 100_000]),
        odd(truncate_prompt_tokens=-(2**70)),
        odd(top_k=2**70),
        odd(seed=2**64 - 1),
        odd(prediction={"content": [{"type": "text"}]}),
        odd(prediction={"content": "x" * 1_000_000}),
        odd(structured_outputs={"regex": "(" * 1_000 + ")" * 1_000}),
        odd(structured_outputs={"regex": "(a|a)*" * 200 + "b"}),
        odd(structured_outputs={"regex": "[0-9]{100000}"}),
        odd(structured_outputs={"json": {"$ref": "#"}}),
        odd(structured_outputs={"json": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}}}),
        odd(structured_outputs={"grammar": "start: start"}),
        odd(structured_outputs={"choice": ["a" * 1_000] * 1_000}),
        odd(response_format={"type": "json_schema", "json_schema": {"schema": {"minLength": -1}}}),
    ]


def messages(chance: random.Random, random_ones: int) -> list[bytes]:
    """Whole messages, as they are sent."""
    good = b'{"prompt":"x","max_tokens":1}'
    chunked = b"transfer-encoding: chunked"
    found = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a greeting of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  /\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"h%d: x\r\n" % at for at in range(20_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nlarge: " + b"x" * 1_000_000 + b"\r\n\r\n",
        b"GET /%00%ff%2e%2e/../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models/%F0%28%8C%28 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models/a%0d%0ab HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"CONNECT example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/foretoken/status HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx-request-id: \xff\xfe\x01\r\n\r\n",
        _post(good, b"content-length: -1"),
        _post(good, b"content-length: 1e3"),
        _post(good, b"content-length: 29", b"content-length: 30"),
        _post(good, b"content-length: 99999999999999999999999999"),
        _post(good, "content-length: ²".encode("latin-1")),
        _post(b"zz\r\n" + good, chunked),
        _post(b"-1\r\n" + good, chunked),
        _post(b"ffffffffffffffffffff\r\n" + good, chunked),
        _post(b"1d\r\n" + good + b"\r\n0\r\n\r\n", chunked, b"content-length: 5"),
        _post(good, b"content-encoding: gzip"),
        _post(good, b"expect: 100-continue"),
        _post(good, b"authorization: Bearer \xff\x00"),
        _post(good, path=b"/v1/completions?a=%ff&%00"),
        *(_post(body) for body in bodies()),
        *(_post(body, path=b"/v1/chat/completions") for body in bodies()[:8]),
        *(_post(body, path=b"/tokenize") for body in bodies()[:8]),
        *(_post(body, path=b"/detokenize") for body in (b'{"tokens":[1e9]}', b'{"tokens":[99999999999999999999999]}')),
    ]
    for at in range(random_ones):
        if at % 2:
            found.append(chance.randbytes(chance.randrange(1, 5_000)))
            continue
        spoiled = bytearray(_post(good))
        for _ in range(chance.randrange(1, 9)):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        found.append(bytes(spoiled))
    return found
