"""How the page looks and how it is used without a mouse, in a browser: sizes, colours, names, numbers, the storage."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from starlette.responses import JSONResponse

from tests.server.web.fake import Gate, Script, calls, ends, says, thinks
from tests.server.web.steps import ask, done, gated, last

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "# Title\n\nSome `code` and **bold**.\n\n- one\n  1. two\n\n```python\n" + "x = 1  " * 60 + "\n```\n" + "w" * 300
ANSWER: Script = [
    thinks("Let me think. " + "m" * 300),
    says(TEXT),
    *calls(0, "get_weather_" + "n" * 100, json.dumps({"city": "P" * 200})),
    ends("tool_calls"),
]
FAILED: Script = JSONResponse({"error": {"message": "e" * 300}}, 500)

# The least contrast of any text that is seen, by the rules of WCAG, and where. No ground is half transparent
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const color = rgba(getComputedStyle(node).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const worst = [Infinity, ""];
  for (const node of document.querySelectorAll("body *:not(option, :disabled, :disabled *)")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!(own || node.matches("input, textarea, select")) || !node.checkVisibility()) continue;
    const [text, back] = [light(rgba(getComputedStyle(node).color)), light(ground(node))];
    const contrast = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    if (contrast < worst[0]) worst.splice(0, 2, contrast, `${node.localName}.${node.className}#${node.id}`);
  }
  return worst;
}"""


@pytest.fixture
def full(page: Page, fake) -> Page:
    """The page with everything on it that there is: all kinds of messages, results to type, a key to give."""
    fake.usage = {"data": [{"requests": 1, "prompt_tokens": 10**9, "completion_tokens": 10**9, "cost": 10**6}]}
    fake.scripts = [FAILED, ANSWER]
    ask(page, "q" * 200)
    done(page)
    page.get_by_role("button", name="Try again").click()
    done(page)
    last(page, "summary").click()
    page.evaluate("document.getElementById('key-form').hidden = false")
    return page


def dark(page: Page) -> bool:
    """Tell whether the ground is darker than the text."""
    shades = page.evaluate(
        "['backgroundColor', 'color'].map(name => Number(getComputedStyle(document.body)[name].match(/\\d+/)[0]))"
    )
    return bool(shades[0] < shades[1])


def test_dark_as_the_system_or_as_chosen(page):
    assert not dark(page)
    page.emulate_media(color_scheme="dark")
    assert dark(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("light", exact=True).check()
    assert not dark(page)
    page.reload()
    assert not dark(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("system", exact=True).check()
    assert dark(page)
    page.emulate_media(color_scheme="light")
    page.get_by_label("dark", exact=True).check()
    page.reload()
    assert dark(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(full, scheme):
    full.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    contrast, where = full.evaluate(CONTRAST)
    assert contrast >= 4.5, f"{where} has {contrast:.2f}"
    full.get_by_role("button", name="Settings").click()
    full.get_by_label("Tools, a JSON list").fill("[")
    full.get_by_label("System prompt").focus()
    expect(full.locator("#tools-error")).not_to_be_empty()
    contrast, where = full.evaluate(CONTRAST)
    assert contrast >= 4.5, f"{where} has {contrast:.2f}"


@pytest.mark.parametrize("width", [320, 768])
def test_nothing_is_wider_than_the_window(full, width):
    full.set_viewport_size({"width": width, "height": 600})
    overflow = (
        "names => names.map(name => document.querySelector(name)).map(node => node.scrollWidth - node.clientWidth)"
    )
    assert full.evaluate(overflow, ["html", "main", ".dock", ".bar"]) == [0, 0, 0, 0]
    for name in ("New chat", "Settings", "Send"):
        box = full.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] >= 40
    full.get_by_role("button", name="Settings").click()
    assert full.evaluate(overflow, ["html", "dialog"]) == [0, 0]


def test_the_composer_stays_in_view(full):
    full.set_viewport_size({"width": 320, "height": 480})
    full.get_by_label("Your message").fill("line\n" * 60)
    expect(full.get_by_role("button", name="Send", exact=True)).to_be_in_viewport(ratio=1)
    expect(full.get_by_label("Your message")).to_be_in_viewport()


def test_every_control_has_a_name_and_is_reached_by_tab(full):
    unnamed = """() => [...document.querySelectorAll("button, input, select, textarea")]
      .filter(node => node.checkVisibility())
      .filter(node => !(node.labels?.length ? [...node.labels] : [node]).some(label => label.textContent.trim()))
      .map(node => node.outerHTML)"""
    assert full.evaluate(unnamed) == []
    full.get_by_role("button", name="New chat").focus()
    reached, at = set(), "document.activeElement"
    for _ in range(30):
        full.keyboard.press("Tab")
        if full.evaluate(f"{at} === document.body"):  # past the last one, or its node was just drawn anew
            continue
        reached.add(full.evaluate(f"{at}.textContent.trim() || {at}.id"))
        style = f"getComputedStyle({at}.id === 'question' ? composer : {at})"
        assert full.evaluate(f"{style}.outlineStyle !== 'none' || {style}.boxShadow !== 'none'")
    assert {"Settings", "Send result", "Regenerate", "key", "question", "Send"} <= reached


def test_the_settings_close_with_escape_and_the_answer_goes_on(page, fake):
    gate = gated(fake)
    ask(page)
    expect(last(page)).to_have_text("Hello")
    page.get_by_role("button", name="Settings").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    gate.open()
    expect(last(page)).to_have_text("Hello there.")


def test_what_happens_is_announced(page, fake):
    gate = gated(fake)
    ask(page)
    expect(page.get_by_role("status")).to_have_text("The model answers.")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    gate.open()
    expect(page.get_by_role("status")).to_have_text("The answer is complete.")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")


def test_the_end_stays_in_view_until_the_reader_scrolls_up(page, fake):
    gates = [Gate(), Gate()]
    lines = "line\n\n" * 60
    fake.scripts = [[says(lines), gates[0], says(lines + "middle\n\n"), gates[1], says(lines + "end"), ends()]]
    ask(page)
    at_end = (
        "() => (({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight < 2)(scroller)"
    )
    expect(last(page, "p").nth(50)).to_be_attached()
    page.wait_for_function(at_end)
    gates[0].open()
    expect(page.get_by_text("middle")).to_be_attached()
    page.wait_for_function(at_end)
    page.evaluate("scroller.scrollTop -= 500")
    expect(page.get_by_role("button", name="Go to the end")).to_be_visible()
    top = page.evaluate("scroller.scrollTop")
    gates[1].open()
    done(page)
    assert page.evaluate("scroller.scrollTop") == top
    page.get_by_role("button", name="Go to the end").click()
    page.wait_for_function(at_end)


def test_a_long_conversation_is_not_made_or_kept_anew_with_every_word(page, fake):
    page.evaluate(
        """text => {
          const ids = Array.from({length: 400}, (_, number) => String(number));
          for (const id of ids) {
            const texts = {content: text, reasoning: "", calls: [], firstMs: null, thoughtFromMs: null};
            const message = {id, role: id % 2 ? "assistant" : "user", status: "done", ...texts};
            localStorage.setItem("openk3.message." + id, JSON.stringify(message));
          }
          localStorage.setItem("openk3.conversation", JSON.stringify({ids}));
        }""",
        TEXT,
    )
    page.reload()
    expect(page.locator("article")).to_have_count(400)
    gate = gated(fake, *[says("word ") for _ in range(50)])
    ask(page)
    expect(last(page)).to_have_text("word " * 50)
    page.evaluate(
        """() => {
          window.changed = new Set();
          const numberOf = node => [...log.children].indexOf(node.parentElement?.closest("article"));
          new MutationObserver(found => found.forEach(({target}) => changed.add(numberOf(target))))
            .observe(log, {subtree: true, childList: true, characterData: true});
          window.written = new Set();
          const {setItem} = Storage.prototype;
          Storage.prototype.setItem = function (name, value) {
            written.add(name);
            return setItem.call(this, name, value);
          };
        }"""
    )
    page.wait_for_timeout(600)  # the next word is kept
    gate.open()
    done(page)
    assert set(page.evaluate("[...changed]")) == {401}
    assert len([name for name in page.evaluate("[...written]") if name.startswith("openk3.message.")]) == 1


def test_a_full_storage_is_said_and_stops_nothing(page):
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }; }")
    ask(page)
    expect(last(page)).to_have_text("Yes.")
    expect(page.locator("#notice")).to_contain_text("no room to keep the conversation")


def test_another_tab_shows_the_same_conversation(page, fake):
    with page.context.expect_page() as opened:
        page.evaluate("open(location.href)")
    other = opened.value
    ask(page)
    done(page)
    expect(other.locator(".text")).to_have_text("Yes.")
    other.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    other.close()


def test_what_it_cost_and_how_fast_it_was(page, fake):
    gate = gated(fake, {**says("Hello"), "usage": {"completion_tokens": 5}})
    ask(page)
    expect(last(page, ".stats")).to_contain_text("5 output")
    page.wait_for_timeout(150)
    gate.open()
    done(page)
    stats = last(page, ".stats")
    expect(stats).to_contain_text("1,036 prompt tokens (24 cached)17 output (3 reasoning)")
    expect(stats).to_contain_text(re.compile(r"\d+\.\d tokens/s.*first token \d+\.\d\d s"))


def test_what_has_been_used_in_all(page, fake):
    expect(page.locator("#usage")).to_be_hidden()
    account = {"requests": 2, "prompt_tokens": 1500, "cached_tokens": 500, "completion_tokens": 7, "cost": 0.5}
    fake.usage = {"data": [account, {**account, "key": "other"}, None]}
    ask(page)
    expect(page.locator("#usage")).to_contain_text("4 requests, 3,000 tokens in (1,000 cached), 14 out; $1.0000")


def test_other_things_in_the_storage_do_no_harm(page, fake):
    kept = {"conversation": {"ids": ["a", "b", 3]}, "message.a": {"role": "assistant"}, "settings": [], "message.b": 1}
    for name, value in kept.items():
        page.evaluate("([name, value]) => localStorage.setItem(name, value)", [f"openk3.{name}", json.dumps(value)])
    page.evaluate("localStorage.setItem('openk3.message.3', '{')")
    page.reload()
    ask(page)
    expect(last(page)).to_have_text("Yes.")
