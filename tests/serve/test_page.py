"""The page of `foretoken serve`, in a browser."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PAGE = Path(__file__).parents[2] / "src" / "foretoken" / "serve" / "page" / "index.html"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def serving(**settings: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server that needs no model, and the requests that it gets."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed, so the page is not tried in a browser")
    pytest.importorskip("starlette", reason="starlette is not installed, so the page is not tried in a browser")
    from tests.serve.fake_events import fake

    app = fake(**settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/", app.state.asked
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with serving() as served:
        yield served


@pytest.fixture
def page_url(server: tuple[str, list[dict[str, Any]]]) -> str:
    return server[0]


@pytest.fixture
def asked(server: tuple[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    server[1].clear()
    return server[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed, so the page is not tried in a browser"
    )
    if BROWSER is None:
        pytest.skip("there is no chromium, so the page is not tried in a browser")
    sync.expect.set_options(timeout=10_000)
    with sync.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages, and fails if one asks another machine for anything, or complains."""
    contexts, wrong = [], []

    def asks(address: str) -> None:
        if not address.startswith(("data:", "blob:")) and urlsplit(address).hostname not in LOOPBACK:
            wrong.append(f"asks for {address}")

    def open_page(address: str, *, status: int = 200, **settings: Any) -> Any:
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        # a browser tells of each answer that refuses, so the tests of these say which they expect
        fine = f"status of {status}" if status != 200 else None
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" and not (fine and fine in m.text) else 0)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asks(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def prompt(page: Any) -> Any:
    return page.get_by_role("textbox", name="Prompt")


def run(page: Any, text: str | None = None) -> None:
    from playwright.sync_api import expect

    expect(page.get_by_text("stdlib-27m", exact=True)).to_be_visible()
    if text is not None:
        prompt(page).fill(text)
    page.get_by_role("button", name="Run").click()


def text_of(page: Any, name: str) -> Any:
    return page.get_by_role("group", name=name)


WITH_DRAFT, PLAIN = "Text with draft", "Text of plain decoding"


@pytest.mark.prove
def test_both_texts_are_written_and_compared(
    opened: Callable[..., Any], page_url: str, asked: list[dict[str, Any]]
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    run(page)
    expect(page.get_by_text(re.compile(r"The same \d+ tokens"))).to_have_count(2)  # one of them is read out
    for name in (WITH_DRAFT, PLAIN):
        expect(text_of(page, name)).to_contain_text("def add(a, b):", use_inner_text=True)
        expect(text_of(page, name)).to_contain_text("the sum <b>of</b> two", use_inner_text=True)
    assert page.locator(".out b").count() == 0
    assert text_of(page, WITH_DRAFT).locator(".o1, .o2").count() > 10
    assert text_of(page, PLAIN).locator(".o1, .o2").count() == 0
    expect(page.get_by_label("Tokens a second")).to_contain_text(re.compile(r"\d+\.\d\s*tok/s.*\d\.\d\d×", re.DOTALL))
    expect(page.get_by_role("row", name=re.compile("^lookup"))).to_contain_text("50 %")
    assert [each.get("draft") for each in asked] == [None, "none"]
    first, second = asked
    assert first == {key: value for key, value in second.items() if key != "draft"}
    assert first["foretoken"] == {"trace": True}
    assert "seed" not in first


@pytest.mark.prove
def test_the_page_chooses_one_seed_for_both_when_it_samples(
    opened: Callable[..., Any], page_url: str, asked: list[dict[str, Any]]
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    page.get_by_label("Temperature").fill("0.8")
    page.get_by_label("Stop at").fill(r"\n\n|END")
    run(page)
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"The same \d+ tokens with seed \d+"))
    assert isinstance(asked[0]["seed"], int)
    assert asked[0]["seed"] == asked[1]["seed"]
    assert asked[0]["stop"] == ["\n\n", "END"]


@pytest.mark.prove
def test_plain_decoding_can_wait_until_it_is_asked_for(
    opened: Callable[..., Any], page_url: str, asked: list[dict[str, Any]]
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    page.get_by_label("Run plain, too").uncheck()
    run(page)
    button = page.get_by_role("button", name="The same as plain?")
    expect(button).to_be_enabled()
    expect(page.get_by_label("Tokens a second")).to_contain_text("about 19.2")
    assert len(asked) == 1
    button.click()
    expect(page.locator("#verdict")).to_contain_text("The same")
    assert len(asked) == 2


@pytest.mark.prove
def test_a_difference_is_told_and_marked(opened: Callable[..., Any], page_url: str) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    run(page, "make it differ")
    expect(page.locator("#verdict")).to_contain_text("They differ at token 12")
    expect(page.locator("#verdict")).to_contain_text("“·other” in plain decoding")
    expect(page.locator(".differs")).to_have_count(2)


@pytest.mark.prove
def test_tokens_can_be_read_with_the_keyboard_alone(opened: Callable[..., Any], page_url: str) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    expect(prompt(page)).to_have_value("def add(")
    prompt(page).focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#verdict")).to_contain_text("The same")
    rejected = page.get_by_role("checkbox", name="Show rejected drafts")
    rejected.focus()
    page.keyboard.press("Tab")  # the button before the text
    if page.get_by_role("button", name="Copy").first.is_visible():
        page.keyboard.press("Tab")
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("position 1")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("position 2")
    expect(tip).to_contain_text(re.compile(r"Round \d+, token \d+ of \d+"))
    expect(tip).to_contain_text("Probability")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("End")
    expect(tip).to_contain_text("Written by the model")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    rounds = page.get_by_role("slider", name="Rounds")
    rounds.focus()
    page.keyboard.press("End")
    expect(rounds).to_have_attribute("aria-valuetext", re.compile(r"Round \d+: .*Draft .* check .*gained"))


@pytest.mark.prove
def test_rejected_drafts_are_shown_on_demand(opened: Callable[..., Any], page_url: str) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    run(page)
    expect(page.locator("#verdict")).to_contain_text("The same")
    twig = text_of(page, WITH_DRAFT).locator(".twig").first
    expect(twig).to_be_hidden()
    page.get_by_role("checkbox", name="Show rejected drafts").check()
    expect(twig).to_be_visible()
    twig.locator(".t").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text(re.compile("Drafted by (mxfp4|lookup), rejected"))


@pytest.mark.prove
@pytest.mark.parametrize(
    ("text", "said", "status"),
    [("refuse this", "The prompt has 5000 tokens; shorten it.", 400), ("break off", "The engine has failed.", 200)],
)
def test_failures_are_told_where_the_text_would_be(
    opened: Callable[..., Any], page_url: str, asked: list[dict[str, Any]], text: str, said: str, status: int
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url, status=status)
    run(page, text)
    expect(page.get_by_role("alert")).to_have_text(said)
    expect(page.get_by_role("button", name="Run")).to_be_visible()
    expect(page.get_by_role("button", name="The same as plain?")).to_be_disabled()
    assert len(asked) == 1


@pytest.mark.prove
def test_a_text_without_drafts_says_why(opened: Callable[..., Any], page_url: str) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    run(page, "nothing to draft")
    expect(page.get_by_label("With draft").get_by_text("Nothing was drafted: nothing repeated.")).to_be_visible()


@pytest.mark.prove
def test_a_conversation_goes_on_with_the_drafted_answer(
    opened: Callable[..., Any], page_url: str, asked: list[dict[str, Any]]
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url)
    page.get_by_role("radio", name="Chat").check()
    for text in ("Add two numbers.", "And subtract them?"):
        prompt(page).fill(text)
        prompt(page).press("Enter")
        expect(page.locator("#now")).to_contain_text(text)
        expect(page.locator("#verdict")).to_contain_text("The same")
    roles = [each["role"] for each in asked[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert asked[-1]["messages"][1]["content"].startswith("a, b):")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("And subtract them?")).to_be_hidden()


@pytest.mark.prove
def test_a_run_can_be_stopped(opened: Callable[..., Any]) -> None:
    from playwright.sync_api import expect

    with serving(slow=2.0, chat=False) as (address, asked):
        page = opened(address)
        run(page)
        expect(page.get_by_role("radio", name="Chat")).to_be_hidden()
        expect(page.get_by_label("With draft").get_by_text(re.compile(r"\d tokens? in \d+ rounds"))).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("Stopped.")).to_be_visible()
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        assert len(asked) == 1


@pytest.mark.prove
def test_a_key_is_asked_for_and_kept(opened: Callable[..., Any]) -> None:
    from playwright.sync_api import expect

    with serving(key="of-a-test") as (address, _):
        page = opened(address, status=401)
        field = page.get_by_label("API key")
        expect(field).to_be_visible()
        field.fill("of-a-test")
        field.press("Enter")
        expect(field).to_be_hidden()
        run(page)
        expect(page.locator("#verdict")).to_contain_text("The same")
        page.reload()
        expect(page.get_by_text("stdlib-27m", exact=True)).to_be_visible()
        expect(field).to_be_hidden()


@pytest.mark.prove
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_and_its_words_can_be_read(
    opened: Callable[..., Any], page_url: str, scheme: str, width: int
) -> None:
    from playwright.sync_api import expect

    page = opened(page_url, viewport={"width": width, "height": 740}, color_scheme=scheme, reduced_motion="reduce")
    run(page)
    expect(page.locator("#verdict")).to_contain_text("The same")
    page.get_by_role("checkbox", name="Show rejected drafts").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    low = page.evaluate(CONTRAST)
    assert low == []


# Texts whose contrast with what lies behind them is under 4.5, and controls whose smaller side is under 24 pixels.
CONTRAST = """() => {
  const pen = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
  const shown = (...layers) => {
    for (const layer of layers) { pen.fillStyle = layer; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(":disabled, .hidden-label, script")) continue;
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const behind = light(shown(...layers)), ink = light(shown(...layers, getComputedStyle(node).color));
    const ratio = (Math.max(behind, ink) + 0.05) / (Math.min(behind, ink) + 0.05);
    if (ratio < 4.5) low.push(`${node.className} ${node.textContent.slice(0, 20)}: ${ratio.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll("button, input:not([type=radio])")) {
    const box = (node.closest("label") || node).getBoundingClientRect();
    if (node.checkVisibility() && Math.min(box.width, box.height) < 24) low.push(`${node.id}: ${box.height} high`);
  }
  return low;
}"""
