"""The console in headless Chromium, as people use it: mouse, keyboard, dropped files, light and dark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.contract.test_console import png
from tests.support.server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: axe-core's axe.min.js, from the npm package of that name.
AXE = os.environ.get("MODELYARD_AXE", "")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        # As root, as in a container, Chromium has no sandbox.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, console_server: RunningServer) -> Iterator[Page]:
    context = browser.new_context(base_url=console_server.rest_url, color_scheme="light")
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    # What the policy blocks is a complaint, too.
    assert complaints == []


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_signature_is_called_without_leaving_the_page(page: Page) -> None:
    page.goto("/console")
    page.get_by_role("link", name="affine").click()
    assert page.title() == "affine · modelyard"
    page.evaluate("window.same = true")
    page.get_by_label("Request, as JSON").fill('{"instances": [20.0]}')
    page.get_by_label("Version", exact=True).select_option("label stable")
    page.get_by_role("button", name="Call serving_default").click()
    page.get_by_role("cell", name="41.0").wait_for()
    assert page.evaluate("window.same")
    page.get_by_text("From a command line").click()
    assert "/v1/models/affine/labels/stable:predict" in page.locator(".curl").inner_text()
    assert page.locator(".curl").inner_text().count("http://127.0.0.1") == 1


def test_a_dropped_image_is_answered_with_bars(page: Page, tmp_path: Path) -> None:
    page.goto("/console/models/fashion")
    data = page.evaluate_handle(
        """bytes => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "trouser.png", {type: "image/png"}));
            return data;
        }""",
        list(png(2)),
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    page.get_by_role("img", name="trouser.png").wait_for()
    table = page.get_by_role("table", name="probabilities of example 1")
    assert table.get_by_role("row").nth(1).inner_text().split()[0] == "Trouser"
    widths = [float(bar.get_attribute("width") or 0) for bar in table.locator(".fill").all()]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 50


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.goto("/console/models/affine")
    seen: list[str] = []
    while len(seen) < 30 and "Call serving_default" not in seen:
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(e => [e.name || e.innerText.trim(), getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        seen.append(focused[0])
        assert focused[1] != "none", seen
    assert seen[:6] == ["Skip to the content", "modelyard", "Models", "Live", "API", "Dark"]
    assert seen[-3:] == ["where", "body", "Call serving_default"]
    page.get_by_label("Request, as JSON").fill('{"instances": [1.0]}')
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("cell", name="4.0").wait_for()


def test_dark_is_followed_chosen_and_kept(page: Page) -> None:
    page.goto("/console")
    light = ground(page)
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    assert dark != light
    page.get_by_role("button", name="Light").click()
    assert ground(page) == light
    page.goto("/console/live")
    assert ground(page) == light
    page.get_by_role("button", name="Dark").click()
    assert ground(page) == dark


def test_the_live_page_follows_and_pauses(page: Page, console_server: RunningServer) -> None:
    def ask() -> None:
        body = b'{"instances": [{"ids": [1, 2], "word": "a"}]}'
        assert console_server.post("/v1/models/words:predict", body)[0] == 200

    ask()
    page.clock.install()
    page.goto("/console/live")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="words")).first
    answered = row.get_by_role("cell").nth(7)
    before = answered.inner_text()
    ask()
    playwright.expect(answered).not_to_have_text(before, timeout=15_000)
    assert (page.locator("#summary").text_content() or "").startswith("Answered per second:")
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    assert pause.get_attribute("aria-pressed") == "true"
    refreshed: list[str] = []
    page.on("request", lambda request: refreshed.append(request.url))
    page.clock.run_for(60_000)
    assert refreshed == []
    pause.click()
    with page.expect_request("**/console/live"):
        page.clock.run_for(60_000)


def test_a_foreign_report_runs_no_script(browser: Browser, console_server: RunningServer) -> None:
    page = browser.new_page()
    page.goto(f"{console_server.rest_url}/console/models/affine/versions/3/report")
    assert page.get_by_role("heading", name="Checked").is_visible()
    assert page.title() == "report"
    page.close()


def test_pages_are_whole_without_a_script(browser: Browser, console_server: RunningServer) -> None:
    context = browser.new_context(base_url=console_server.rest_url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/console/models/affine")
    page.get_by_label("Request, as JSON").fill('{"instances": [4.0]}')
    page.get_by_role("button", name="Call serving_default").click()
    page.get_by_role("cell", name="13.0").wait_for()
    context.close()


@pytest.mark.skipif(not AXE, reason="MODELYARD_AXE names no axe.min.js of the npm package axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(page: Page, scheme: Literal["light", "dark"], tmp_path: Path) -> None:
    page.emulate_media(color_scheme=scheme)
    picture = tmp_path / "a.png"
    picture.write_bytes(png(1))
    found: dict[tuple[str, str], list[str]] = {}
    for path in ("/console", "/console/models/fashion", "/console/models/affine", "/console/live", "/console/api"):
        page.goto(path)
        if path.endswith("fashion"):
            page.set_input_files("input[type=file]", picture)
            page.locator(".answer .row").wait_for()
        page.evaluate(Path(AXE).read_text())
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert result["passes"]
        found |= {(path, each["id"]): [node["html"] for node in each["nodes"]] for each in result["violations"]}
    assert found == {}
