"""The routes of the page: what is served and with which headers, without a browser."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openk3.server.web.page import routes

CLIENT = TestClient(Starlette(routes=list(routes())))
PATHS = sorted(route.path for route in routes())
SCRIPTS = [path for path in PATHS if path.endswith(".js")]


def test_the_page_is_there_with_all_that_it_loads():
    page = CLIENT.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(web/[^"]+)"', page.text)
    assert "web/app.js" in named and "web/style.css" in named
    for script in SCRIPTS:
        named += [f"web/{name}" for name in re.findall(r'from "\./([^"]+)"', CLIENT.get(script).text)]
    assert {f"/{name}" for name in named} == set(PATHS) - {"/"}


@pytest.mark.parametrize("path", PATHS)
def test_every_file_has_its_type_and_is_held_to_what_is_served_here(path):
    headers = CLIENT.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self'") and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"].split(";")[0] in ("text/html", "text/css", "text/javascript", "image/svg+xml")


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_has_not_changed_is_not_sent_again(path):
    first = CLIENT.get(path)
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = CLIENT.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    other = CLIENT.get(path, headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(path):
    text = CLIENT.get(path).text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    if path == "/":
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", text)


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_can_turn_text_into_markup(path):
    text = CLIENT.get(path).text
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|eval\(", text
    )


@pytest.mark.parametrize("path", ["/web/", "/web/none.js", "/web/../page.py", "/web/%2e%2e/page.py", "/web/index.html"])
def test_other_files_are_not_served(path):
    assert CLIENT.get(path).status_code == 404


def test_only_reading_is_allowed():
    assert CLIENT.post("/").status_code == 405
    assert CLIENT.head("/").status_code == 200
