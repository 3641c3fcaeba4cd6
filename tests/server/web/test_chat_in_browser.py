"""Conversations in the page, in a browser: what is sent, what is shown, what is kept."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response

from openk3.server.app import create_app
from openk3.server.openai.chat import ChatCompletions
from openk3.server.web.page import routes
from tests.server.web.fake import WAIT_S, Cut, Script, answer, calls, ends, says, serving, thinks
from tests.server.web.steps import ask, done, gated, last

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def declare(page: Page, tools: str) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Tools, a JSON list").fill(tools)
    page.get_by_role("button", name="Close").click()


def test_an_answer_is_shown_as_it_comes(page, fake):
    gate = gated(fake)
    ask(page, "Hi!")
    expect(last(page)).to_have_text("Hello")
    expect(page.locator(".bubble")).to_have_text("Hi!")
    gate.open()
    expect(last(page)).to_have_text("Hello there.")
    done(page)
    expect(page.get_by_label("Your message")).to_be_focused()
    expect(page.get_by_label("Your message")).to_have_value("")
    assert fake.asked == [
        {
            "model": "nano",
            "messages": [{"role": "user", "content": "Hi!"}],
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "reasoning_effort": "max",
        }
    ]


def test_the_conversation_goes_along_with_what_was_thought(page, fake):
    fake.scripts = [[thinks("So."), says("One."), ends()]]
    ask(page, "first")
    done(page)
    ask(page, "second")
    done(page)
    assert fake.asked[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "One.", "reasoning_content": "So."},
        {"role": "user", "content": "second"},
    ]


def test_enter_sends_and_shift_enter_breaks_the_line(page, fake):
    field = page.get_by_label("Your message")
    field.press("Enter")
    field.press_sequentially("a")
    field.press("Shift+Enter")
    field.press_sequentially("b")
    expect(field).to_have_value("a\nb")
    field.press("Enter")
    done(page)
    assert [body["messages"][0]["content"] for body in fake.asked] == ["a\nb"]


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_stop(page, fake, by):
    gate = gated(fake)
    ask(page)
    expect(last(page)).to_have_text("Hello")
    if by == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    done(page)
    assert gate.left.wait(WAIT_S), "the request still runs"
    expect(last(page)).to_have_text("Hello")
    expect(last(page, ".state")).to_have_text("You stopped this answer.")
    ask(page, "Go on")
    done(page)
    assert fake.asked[1]["messages"][1] == {"role": "assistant", "content": "Hello"}


def test_a_double_click_on_send_does_not_stop(page, fake):
    gate = gated(fake)
    page.get_by_label("Your message").fill("Hello")
    page.get_by_role("button", name="Send", exact=True).dblclick()
    expect(last(page)).to_have_text("Hello")
    gate.open()
    expect(last(page)).to_have_text("Hello there.")


def test_a_reload_keeps_the_conversation(page, fake):
    fake.scripts = [[thinks("Hm."), says("A **bold** one."), ends()]]
    ask(page)
    done(page)
    page.get_by_label("Your message").fill("a draft")
    page.reload()
    expect(page.locator(".bubble")).to_have_text("Hello")
    expect(last(page, "strong")).to_have_text("bold")
    expect(last(page, ".stats")).to_contain_text("17 output (3 reasoning)")
    expect(page.get_by_label("Your message")).to_have_value("a draft")
    ask(page, "And?")
    done(page)
    assert [message["content"] for message in fake.asked[1]["messages"]] == ["Hello", "A **bold** one.", "And?"]


def test_a_reload_while_an_answer_comes_interrupts_it(page, fake):
    gated(fake, says("Half of"), *calls(0, "get_weather", '{"ci'))
    ask(page)
    expect(last(page)).to_have_text("Half of")
    page.reload()
    expect(last(page)).to_have_text("Half of")
    expect(last(page, ".state")).to_have_text("This answer was interrupted.")
    ask(page, "Go on")
    done(page)
    assert fake.asked[1]["messages"][1] == {"role": "assistant", "content": "Half of"}, "a broken call was sent"
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".answer")).to_have_count(2)


def test_thinking_is_folded_and_says_how_long_it_took(page, fake):
    gate = gated(fake, thinks("Let me "), thinks("see."))
    ask(page)
    expect(last(page, "summary")).to_contain_text("Thinking")
    expect(last(page, ".thought")).to_be_hidden()
    last(page, "summary").click()
    expect(last(page, ".thought")).to_have_text("Let me see.")
    gate.open()
    done(page)
    expect(last(page, "summary")).to_have_text(re.compile(r"Thought for \d+\.\d s"))
    expect(last(page, ".thought")).to_be_visible()


def test_thinking_is_open_while_it_happens_for_those_who_want_that(page, fake):
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show thinking while it happens").check()
    page.get_by_role("button", name="Close").click()
    gate = gated(fake, thinks("Let me see."))
    ask(page)
    expect(last(page, ".thought")).to_be_visible()
    gate.open()
    done(page)
    expect(last(page, ".thought")).to_be_hidden()


@pytest.mark.parametrize(
    ("level", "sent"),
    [
        ("off", {"thinking": {"type": "disabled"}}),
        ("low", {"reasoning_effort": "low"}),
        ("high", {"reasoning_effort": "high"}),
    ],
)
def test_how_much_to_think(page, fake, level, sent):
    page.get_by_role("combobox", name="Thinking").select_option(level)
    page.reload()
    ask(page)
    done(page)
    body = fake.asked[0]
    assert {name: body[name] for name in ("thinking", "reasoning_effort") if name in body} == sent


def test_a_tool_is_called_and_its_results_are_sent(page, fake):
    declare(page, json.dumps([TOOL["function"]]))
    parts = [*calls(0, "get_weather", '{"city":', '"Paris"}'), *calls(1, "get_weather", "{}")]
    fake.scripts = [[thinks("Ask."), *parts, ends("tool_calls")], answer("Sunny.")]
    ask(page, "Weather?")
    expect(last(page, ".call .name").first).to_have_text("get_weather")
    expect(last(page, ".call pre").first).to_have_text('{\n  "city": "Paris"\n}')
    ask(page, "Too early")
    expect(page.get_by_label("Result of get_weather").first).to_be_focused()
    page.keyboard.type("17 degrees")
    page.reload()
    page.get_by_label("Result of get_weather").first.fill("17 degrees")
    page.get_by_role("button", name="Send results").click()
    expect(last(page)).to_have_text("Sunny.")
    expect(page.locator(".call").first).to_contain_text("17 degrees")
    assert fake.asked[0]["tools"] == [TOOL]
    functions = [{"name": "get_weather", "arguments": text} for text in ('{"city":"Paris"}', "{}")]
    sent = [{"id": f"get_weather_{n}", "type": "function", "function": each} for n, each in enumerate(functions)]
    assert fake.asked[1]["messages"][1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "Ask.", "tool_calls": sent},
        {"role": "tool", "tool_call_id": "get_weather_0", "content": "17 degrees"},
        {"role": "tool", "tool_call_id": "get_weather_1", "content": ""},
    ]


def test_tools_that_are_none_are_not_sent(page, fake):
    declare(page, '[{"name": ')
    ask(page)
    expect(last(page, ".state")).to_contain_text("This is not JSON")
    page.get_by_role("button", name="Settings").click()
    expect(page.locator("#tools-error")).to_contain_text("This is not JSON")
    page.get_by_role("button", name="Insert an example").click()
    expect(page.locator("#tools-error")).to_have_text("")
    assert fake.asked == []


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            JSONResponse({"error": {"message": "too many <b>"}}, 429, {"Retry-After": "7"}),
            "Too many <b>. Try again in 7 s.",
        ),
        (HTMLResponse("<h1>gateway</h1>", 504), "The server answered 504 Gateway Timeout."),
        (Response("{}", media_type="application/json"), "The server's answer is not a stream of events."),
        ([says("Half"), {"error": {"message": "the server is stopping"}}], "The server is stopping."),
        ([says("Half"), Cut()], "The answer broke off: the server closed the connection before its end."),
        ([says("Half"), "{no json"], "The answer broke off: the server sent something that is not JSON."),
    ],
)
def test_an_error_is_shown_as_text_and_may_be_tried_again(page, fake, script: Script, text):
    fake.scripts = [script]
    ask(page)
    expect(last(page, ".state")).to_have_text(text)
    expect(page.get_by_role("status")).to_have_text(text)
    if not isinstance(script, Response):
        expect(last(page)).to_have_text("Half")
    page.get_by_role("button", name="Try again").click()
    expect(last(page)).to_have_text("Yes.")
    expect(page.locator(".answer")).to_have_count(1)
    assert fake.asked[0] == fake.asked[1]


def test_markup_of_the_model_stays_text(page, fake):
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    parts = calls(0, evil, json.dumps({"a": evil}))
    fake.models = (evil,)
    fake.scripts = [[thinks(evil), says(f"{evil}\n\n# {evil}\n- **{evil}**\n```{evil}\n{evil}\n```"), *parts, ends()]]
    page.reload()
    ask(page, evil)
    done(page)
    page.reload()
    expect(last(page, ".text p")).to_have_text(evil)
    assert page.locator("#log img, #log script, .bar img").count() == 0
    assert page.title() == "OpenK3"


def test_a_key_is_asked_for_once(page, fake):
    fake.key = "secret"
    ask(page)
    field = page.get_by_label("This server wants an API key")
    expect(field).to_be_focused()
    field.fill("wrong")
    field.press("Enter")
    expect(field).to_be_visible()
    field.fill("secret")
    field.press("Enter")
    expect(last(page)).to_have_text("Yes.")
    expect(page.locator(".answer")).to_have_count(1)
    page.reload()
    expect(field).to_be_hidden()
    ask(page, "Again")
    expect(last(page)).to_have_text("Yes.")
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")


def test_regenerate_replaces_the_last_answer(page, fake):
    fake.scripts = [answer("One."), answer("Two.")]
    ask(page)
    expect(last(page)).to_have_text("One.")
    page.get_by_role("button", name="Regenerate").click()
    expect(last(page)).to_have_text("Two.")
    expect(page.locator(".answer")).to_have_count(1)
    assert fake.asked[0] == fake.asked[1]


def test_a_new_chat_begins_empty_and_the_old_one_can_be_brought_back(page, fake):
    gate = gated(fake)
    ask(page)
    expect(last(page)).to_have_text("Hello")
    page.get_by_role("button", name="New chat").click()
    assert gate.left.wait(WAIT_S), "the request still runs"
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("heading", name="Ask nano")).to_be_visible()
    page.get_by_role("button", name="Bring the old one back").click()
    expect(last(page)).to_have_text("Hello")
    page.get_by_role("button", name="New chat").click()
    ask(page, "New")
    done(page)
    page.reload()
    expect(page.locator(".bubble")).to_have_text(["New"])
    assert fake.asked[1]["messages"] == [{"role": "user", "content": "New"}]


def test_a_conversation_with_the_bundled_model(page, problems, llm):
    app = create_app(llm, endpoints=[ChatCompletions()], counters=[], pages=routes())
    with serving(app) as url:
        page.goto(url)
        problems.clear()  # its address is another one
        ask(page, "Hello!")
        done(page)
        expect(last(page)).not_to_be_empty()
        expect(last(page, "summary")).to_contain_text("Thought for")
        expect(last(page, ".stats")).to_contain_text("prompt tokens")
        expect(page.locator("#usage")).to_contain_text("1 request,")
        assert [problem for problem in problems if not problem.startswith(f"asked {url}")] == []
        problems.clear()
