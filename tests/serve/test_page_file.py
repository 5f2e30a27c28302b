"""The page of `foretoken serve`, as a file: what it holds, without a browser."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

PAGE = Path(__file__).parents[2] / "src" / "foretoken" / "serve" / "page" / "index.html"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags() -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(PAGE.read_text(encoding="utf-8"))
    return parser.found


def test_the_page_is_one_file_that_refers_to_nothing_elsewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [each for each in re.findall(r"https?://[^\s'\"<>)]*", text) if urlsplit(each).netloc != "www.w3.org"] == []
    assert not re.search(r"@import|\burl\(|[\"'(]//\w|\bEventSource\b|\bimport\s*\(|\bWebSocket\b", text)
    for tag, attributes in tags():
        assert tag not in ("iframe", "object", "embed", "base")
        address = attributes.get("src") or attributes.get("href") or ""
        assert address.startswith(("data:", "#")) or not address, (tag, address)


def test_the_page_says_its_language_its_title_and_that_it_fits_small_screens() -> None:
    found = tags()
    assert PAGE.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert dict(found)["html"].get("lang") == "en"
    assert "title" in dict(found)
    meta = {each.get("name"): each.get("content") or "" for tag, each in found if tag == "meta"}
    assert "width=device-width" in meta["viewport"]
    assert "user-scalable" not in meta["viewport"]


def test_the_page_writes_no_text_of_the_model_as_markup() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not any(name.startswith("on") for _, attributes in tags() for name in attributes)
    assert not any("style" in attributes for _, attributes in tags())


def test_all_that_the_script_looks_for_is_there_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    ids = [each["id"] for _, each in tags() if "id" in each]
    assert sorted(ids) == sorted(set(ids))
    wanted = set(re.findall(r"\$\(\"([\w-]+)\"\)", text))
    assert len(wanted) > 30
    assert wanted <= set(ids)
