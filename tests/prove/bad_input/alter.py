"""What can be done to good input: to a JSON document, to bytes, to the header and the numbers of safetensors."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DIGITS, _DEEP = "@5000 digits@", "@100000 brackets@"  # what json.dumps would refuse to write: put in afterwards

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    0.5,
    -0.0,
    1e-300,
    2**31,
    -(2**31),
    2**63,
    2**64,
    10**9,
    10**12,
    10**30,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "1",
    "nan",
    "\ud800",
    "a\0b",
    "٣",
    "\u202eabc",
    "\x1b[2J",
    "../..",
    "/dev/zero",
    "é" * 300,
    "9" * 4000,
    [],
    {},
    [[]],
    [None],
    [-1],
    {"": 0},
    {"x": {"y": []}},
    _DIGITS,
    _DEEP,
)


def written(document: Any) -> bytes:
    """JSON, with what Python's own writer has no value for."""
    text = json.dumps(document)
    text = text.replace(json.dumps(_DIGITS), "9" * 5000)
    return text.replace(json.dumps(_DEEP), "[" * 100_000 + "]" * 100_000).encode()


def alter_json(document: Any, dice: random.Random) -> tuple[Any, str]:
    """The document with one thing in it changed, and what."""
    document = copy.deepcopy(document)
    node, path = document, []
    while True:
        key = dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
        path.append(str(key)[:30])
        if not isinstance(node[key], dict | list) or not node[key] or dice.random() < 0.2:
            break
        node = node[key]
    where, how = "/".join(path), dice.random()
    if how < 0.15:
        del node[key]
        return document, f"without {where}"
    if how < 0.25:
        other = dice.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node[key], node[other] = node[other], node[key]
        return document, f"{where} and {str(other)[:30]} exchanged"
    if how < 0.32 and isinstance(node, dict):
        node[key.upper() + "_"] = node.pop(key)
        return document, f"{where} renamed"
    value = node[key]
    if how < 0.55 and isinstance(value, int | float) and not isinstance(value, bool):
        node[key] = dice.choice((value + 1, value - 1, value * 2, value // 2, -value, value * 10**6, float(value)))
    else:
        node[key] = dice.choice(ODD)
    return document, f"{where} is {str(node[key])[:30]!a}"


def alter_line(path: Path, dice: random.Random, more: Callable[[Any, str], str] = lambda _, what: what) -> str:
    """A line of a file of JSON lines changed, and what. more: changes the object of it further."""
    lines = path.read_bytes().splitlines()
    at = dice.randrange(len(lines))
    changed, what = alter_json(json.loads(lines[at]), dice)
    what = more(changed, what)
    lines[at] = written(changed)
    path.write_bytes(b"\n".join(lines))
    return what


def alter_bytes(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """A file cut, spoiled, or something else altogether."""
    at = dice.randrange(max(1, len(data)))
    ways: list[tuple[bytes, str]] = [
        (b"", "empty"),
        (data[:at], f"cut at {at}"),
        (data[: dice.randrange(20)], "cut near its beginning"),
        (data[:-1], "without its last byte"),
        (data + b"\0" * dice.randrange(1, 99), "with zeros behind it"),
        (data[:at] + data[at + 1 :], f"without byte {at}"),
        (data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :] if data else b"", f"a bit of {at}"),
        (data[:at] + dice.randbytes(9) + data[at + 9 :], f"nine bytes at {at}"),
        (dice.randbytes(len(data) % 5000), "noise"),
        (b"\xff\xfe" + data[:999].decode("latin-1").encode("utf-16-le"), "UTF-16"),
        (b"\xef\xbb\xbf" + data, "with a byte order mark"),
        (b"[" * 100_000, "100,000 brackets"),
        (b'{"a":' * 100_000, "100,000 objects"),
        (b"9" * 5000, "5000 digits"),
        (data + data, "twice"),
        (b"\x80\x04\x95", "the beginning of a pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a pointer of git-lfs"),
        (b"<!DOCTYPE html><html>", "a page of the web"),
    ]
    return dice.choice(ways)


def read_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of safetensors, and the numbers behind it."""
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header: Any, numbers: bytes) -> bytes:
    """Safetensors again."""
    text = written(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + numbers


def alter_safetensors(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """Header, offsets, types, shapes, names or numbers of a safetensors file changed."""
    header, numbers = read_header(data)
    names = [name for name in header if name != "__metadata__"]
    name = dice.choice(names)
    tensor = header[name]
    begin, end = tensor["data_offsets"]
    way = dice.randrange(12)
    if way == 0:
        length = dice.choice((0, 1, 2**20, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1, len(data), len(data) - 8))
        return struct.pack("<Q", length) + data[8:], f"a header of {length} bytes"
    if way == 1:
        changed, what = alter_json(header, dice)
        return with_header(changed, numbers), f"header: {what}"
    if way == 2:
        changed, what = alter_json(tensor, dice)
        return with_header({**header, name: changed}, numbers), f"{name}: {what}"
    if way == 3:
        tensor["dtype"] = dice.choice(
            ("F16", "BF16", "I16", "U16", "F32", "F64", "I8", "BOOL", "F8_E4M3", "C64", "F4", "")
        )
        return with_header(header, numbers), f"{name} is {tensor['dtype']}"
    if way == 4:
        offsets = dice.choice(
            (
                [begin, end - 2],
                [begin + 2, end],
                [end, begin],
                [0, end - begin],
                [-2, end],
                [begin, 2**62],
                [begin, len(numbers) + 2],
                [begin],
                [],
                [begin, end, end],
                [float(begin), end],
                [2**64, 2**65],
            )
        )
        tensor["data_offsets"] = offsets
        return with_header(header, numbers), f"{name} at {offsets}"
    if way == 5:
        shape = tensor["shape"]
        count = (end - begin) // 2
        tensor["shape"] = dice.choice(
            (
                shape[::-1],
                [*shape, 1],
                [1, *shape],
                [count],
                [],
                [0],
                [-1, *shape[1:]],
                [2**62, 4],
                [2**32, 2**32],
                [count // 2, 2],
                [1] * 70,
            )
        )
        return with_header(header, numbers), f"{name} has shape {str(tensor['shape'])[:40]}"
    if way == 6:
        new = dice.choice(
            (f"{name}x", name.upper(), f"model.{name}", "", "\ud800", dice.choice(names), name.removesuffix(".weight"))
        )
        header[new] = header.pop(name)
        return with_header(header, numbers), f"{name} renamed to {new!a}"
    if way == 7:
        spoiled = dice.choice((b"\xff\xff", b"\x80\x7f", b"\x80\xff", b"\x7f\x7f", b"\x00\x00", b"\x01\x00"))
        some = spoiled * ((end - begin) // 2) if dice.random() < 0.5 else spoiled
        at = begin + 2 * dice.randrange((end - begin - len(some)) // 2 + 1)
        return with_header(
            header, numbers[:at] + some + numbers[at + len(some) :]
        ), f"{name}: {len(some)} bytes of {spoiled!r}"
    if way == 8:
        return with_header(header, dice.randbytes(len(numbers))), "numbers are noise"
    if way == 9:
        at = dice.randrange(8, 8 + min(len(data) - 8, 2000))
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :], f"a bit of header byte {at}"
    if way == 10:
        cut = dice.choice((len(numbers) // 2, len(numbers) - 1, 0, 1))
        return with_header(header, numbers[:cut]), f"only {cut} bytes of numbers"
    return alter_bytes(data, dice)


def spoil(path: Path, dice: random.Random) -> str:
    """Something that is wrong with a file whatever it holds."""
    data = path.read_bytes() if path.is_file() else b""
    path.unlink()
    way = dice.randrange(6)
    if way == 0:
        return "is absent"
    if way == 1:
        path.mkdir()
        return "is a folder"
    if way == 2:
        path.symlink_to(path.name)
        return "is a link to itself"
    if way == 3:
        path.symlink_to("nowhere")
        return "is a link to nowhere"
    if way == 4:
        path.symlink_to("/dev/null")
        return "is a link to /dev/null"
    changed, what = alter_bytes(data, dice)
    path.write_bytes(changed)
    return f"is {what}"
