"""Parts of the page on their own, in a browser: Markdown to elements, bytes to events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.web.fake import Fake

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAMPLE = """# Title

One `code` and **bold `too`** and
a second line.
- first
  more of it

  and a part of its own
- second
    - deeper

3. three
4. four

```python
x = "<b>"

```
***
* star
~~~
not closed ``` **yes**
"""

# Each as [tag, what is in it …]; texts are texts.
TREE = """node => {
  const tree = node => node.nodeType === 3 ? node.data : [node.localName, ...[...node.childNodes].map(tree)];
  node.normalize();
  return [...node.childNodes].map(tree);
}"""


@pytest.fixture(scope="module")
def run(window: Page, served: Fake) -> Callable[..., Any]:
    """Calls a function of a script with the module and an argument."""
    window.goto(served.url)

    def run(module: str, function: str, argument: object = None) -> Any:
        return window.evaluate(
            f"async argument => ({function})(await import('./web/{module}.js'), argument, {TREE})", argument
        )

    return run


SHOWN = """({LiveMarkdown}, text, tree) => {
  const node = document.createElement("div");
  new LiveMarkdown(node).update(text);
  return tree(node);
}"""


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", []),
        ("one\ntwo\n\nthree", [["p", "one\ntwo"], ["p", "three"]]),
        ("# A `b`", [["h3", "A ", ["code", "b"]]]),
        ("#no", [["p", "#no"]]),
        ("a **b `c`** d", [["p", "a ", ["strong", "b ", ["code", "c"]], " d"]]),
        ("**open", [["p", "**open"]]),
        ("2 ** 3 ** 4", [["p", "2 ** 3 ** 4"]]),
        ("`` a`b `` `c", [["p", ["code", " a`b "], " `c"]]),
        ("`**a**`", [["p", ["code", "**a**"]]]),
        ("- a\n- b\n  1. c\n- d", [["ul", ["li", "a"], ["li", "b", ["ol", ["li", "c"]]], ["li", "d"]]]),
        ("1. a\n\n2. b\n\nc", [["ol", ["li", "a"], ["li", "b"]], ["p", "c"]]),
        ("```js\na\n\n  b\n```\nc", [["div", ["span", "js"], ["pre", ["code", "a\n\n  b"]]], ["p", "c"]]),
        ("````\n```\n````", [["div", ["pre", ["code", "```"]]]]),
        ("a\r\n\r\n---\r\nb", [["p", "a"], ["hr"], ["p", "b"]]),
        ("<img src=x onerror=alert(1)>", [["p", "<img src=x onerror=alert(1)>"]]),
        ("[x](javascript:alert(1))", [["p", "[x](javascript:alert(1))"]]),
    ],
)
def test_markdown(run, text, tree):
    assert run("markdown", SHOWN, text) == tree


def test_a_text_that_grows_is_shown_as_if_it_had_come_at_once(run):
    differing = run(
        "markdown",
        """({LiveMarkdown}, text, tree) => {
          const [grown, whole] = [0, 0].map(() => document.createElement("div"));
          const live = new LiveMarkdown(grown);
          const differing = [];
          for (let size = 0; size <= text.length; size++) {
            live.update(text.slice(0, size));
            whole.replaceChildren();
            new LiveMarkdown(whole).update(text.slice(0, size));
            if (grown.innerHTML !== whole.innerHTML) differing.push(text.slice(0, size));
          }
          return differing;
        }""",
        SAMPLE,
    )
    assert differing == []


def test_finished_blocks_are_not_made_again(run):
    same = run(
        "markdown",
        """({LiveMarkdown}) => {
          const node = document.createElement("div");
          const live = new LiveMarkdown(node);
          const paragraphs = Array.from({length: 50}, (_, number) => `paragraph ${number}`).join("\\n\\n");
          live.update(paragraphs + "\\n\\nlast\\n");
          const before = [...node.children];
          live.update(paragraphs + "\\n\\nlast\\nand more");
          return before.filter((child, index) => node.children[index] === child).length;
        }""",
    )
    assert same == 50


@pytest.mark.parametrize(
    "part", ["**a ", "`a``b", "- ", "  - a\n      - b\n", "> ", "``` \n", "# a" + " " * 50_000 + "#b"]
)
def test_repetitive_text_takes_no_quadratic_time(run, part):
    text = part * max(1, 100_000 // len(part))
    assert run("markdown", "({blocksOf}, text) => blocksOf(text).length", text) > 0
    assert run("markdown", SHOWN.replace("return tree(node)", "return node.childNodes.length"), text) > 0


EVENTS = """async ({eventData}, [bytes, size]) => {
  const chunks = [];
  for (let from = 0; from < bytes.length; from += size) chunks.push(new Uint8Array(bytes.slice(from, from + size)));
  const stream = new ReadableStream({start(to) { chunks.forEach(chunk => to.enqueue(chunk)); to.close(); }});
  const found = [];
  for await (const data of eventData(stream)) found.push(data);
  return found;
}"""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_bytes_are_cut(run, newline):
    lines = [
        ": a comment",
        "",
        'data: {"a": "é 漢 🙂"}',
        "",
        "event: x",
        "data:one",
        "data: two",
        "",
        "data: [DONE]",
        "",
        "",
    ]
    sent = list((newline.join(lines) + (":" if newline == "\r" else "")).encode())
    for size in (1, 2, 3, 7, len(sent)):
        assert run("stream", EVENTS, [sent, size]) == ['{"a": "é 漢 🙂"}', "one\ntwo", "[DONE]"]


def test_an_event_that_is_cut_off_is_none(run):
    assert run("stream", EVENTS, [list(b"data: one\n\ndata: two\n"), 100]) == ["one"]


def test_calls_that_come_in_parts_are_put_together(run):
    deltas = [
        {"tool_calls": [{"index": 0, "id": "a_0", "function": {"name": "a", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "b_1", "function": {"name": "b", "arguments": "{}"}}]},
    ]
    frames = [{"choices": [{"delta": delta}]} for delta in deltas]
    calls = run(
        "answer",
        """({newAnswer, addFrame}, frames) => {
          const answer = newAnswer("nano");
          frames.forEach(frame => addFrame(answer, frame));
          return answer.calls;
        }""",
        frames,
    )
    assert calls == [
        {"id": "a_0", "name": "a", "arguments": '{"x":1}'},
        {"id": "b_1", "name": "b", "arguments": "{}"},
    ]
