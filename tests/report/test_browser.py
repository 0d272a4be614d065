"""The page in a browser: nothing fails, keys do what a mouse does, and all of it can be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.reports import NASTY, made_report, profile_of

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

_BINARIES = ("chromium", "chromium-browser", "google-chrome")
# For containers, where Chromium runs as root and without a GPU; and it is to ask nobody anything.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PHONE = {"width": 375, "height": 667}
_DESKTOP = {"width": 1280, "height": 900}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    binary = next(filter(None, map(shutil.which, _BINARIES)), None)
    if binary is None:
        pytest.skip("no Chromium on this machine; run: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=binary, args=list(_FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports with a profile and without, of ten seconds, and a small one for axe-core."""
    folder = tmp_path_factory.mktemp("pages")
    report = made_report()
    return {
        "measured": report.to_html(folder / "measured.html", profile_of(report)),
        "late": report.to_html(folder / "late.html", replace(profile_of(report), total_us=1e7)),
        "estimated": report.to_html(folder / "estimated.html"),
        "small": made_report(21).to_html(folder / "small.html"),
    }


@pytest.fixture
def open_page(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """Opens a page; afterwards it must have logged nothing and asked for nothing else."""
    contexts: list[Any] = []
    said: list[str] = []

    def opener(name: str = "measured", *, viewport: Any = None, **options: Any) -> Any:
        context = browser.new_context(viewport=viewport or _DESKTOP, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        url = files[name].as_uri()
        page.on("request", lambda request: request.url == url or said.append(request.url))
        page.goto(url)
        return page

    yield opener
    for context in contexts:
        context.close()
    assert said == []


def column(page: Any, table: str, index: int) -> list[str]:
    """The visible cells of a column, from the top."""
    found: list[str] = page.locator(f"#{table} tbody tr:visible").evaluate_all(
        "(rows, index) => rows.map((row) => row.cells[index].textContent)", index
    )
    return found


@pytest.mark.parametrize("name", ["measured", "estimated"])
def test_nothing_is_said_and_no_name_runs(open_page: Open, name: str) -> None:
    page = open_page(name)
    assert NASTY in page.title()  # not "owned"
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text().startswith(NASTY)


def test_tables_are_sorted_by_keyboard(open_page: Open) -> None:
    """Enter sorts numbers from the largest, again turns round; Space does as Enter does."""
    page = open_page()
    times = column(page, "kernels-table", 8)
    page.focus("#kernels-table th:nth-child(8) button")
    page.keyboard.press("Tab")
    heading = page.locator("#kernels-table th:nth-child(9)")
    assert page.evaluate("document.activeElement.textContent") == "µs"
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(page, "kernels-table", 8) == sorted(times, key=float, reverse=True) != times
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "kernels-table", 8) == sorted(times, key=float)
    page.focus("#kernels-table th:nth-child(2) button")
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") is None
    names = column(page, "kernels-table", 1)
    assert names == sorted(names, key=lambda name: int(name.rsplit("_", 1)[1]))


def test_numbers_with_commas_and_unknown_ones_are_sorted(open_page: Open) -> None:
    page = open_page()
    page.click("#operators-table th:nth-child(1) button")  # now the numbers are in no order
    page.click("#operators-table th:nth-child(5) button")
    values = column(page, "operators-table", 4)
    known = [float(value.replace(",", "")) for value in values if value != "–"]
    assert known == sorted(known, reverse=True) and len(known) < len(values)
    assert values[len(known) :] == ["–"] * (len(values) - len(known))
    page.click("#operators-table th:nth-child(5) button")
    assert column(page, "operators-table", 4)[len(known) :] == values[len(known) :]


def test_rows_are_filtered(open_page: Open) -> None:
    page = open_page()
    box = page.get_by_label("Filter").first
    box.fill("llvm TUNED")
    kernels = made_report().kernels
    wanted = [k.name for k in kernels if k.device == "llvm" and k.origin == "tuned"]
    assert column(page, "kernels-table", 1) == wanted
    assert page.locator("output").first.inner_text() == f"{len(wanted)} of {len(kernels)} rows"
    box.fill("")
    assert len(column(page, "kernels-table", 1)) == len(kernels)


def test_the_graph_is_walked_with_arrows(open_page: Open) -> None:
    """It is one stop of the Tab key; what has the focus is told."""
    page = open_page()
    assert page.locator(".node[tabindex='0']").count() == 1
    page.focus(".node[tabindex='0']")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.id") == "operator-1"
    detail = page.locator("#graph-detail").inner_text()
    assert "BatchNormalization stage0/block0/batchnormalization" in detail
    assert "opencl: the target" in detail and "kernel 1 fused_conv2d_0" in detail
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "operator-0"
    assert NASTY in page.locator("#graph-detail").inner_text()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == "operator-59"
    assert page.locator(".node[tabindex='0']").count() == 1
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.classList.contains('node')")


def test_what_has_the_focus_is_seen(open_page: Open) -> None:
    """Every stop of the Tab key has an outline, or a border that is drawn for it."""
    page = open_page()
    unseen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        unseen += page.evaluate(
            """() => {
              const at = document.activeElement, style = getComputedStyle(at);
              const box = at.querySelector(":scope > .box");
              const seen = box ? parseFloat(getComputedStyle(box).strokeWidth) > 2
                : style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
              return seen ? [] : [at.outerHTML.slice(0, 80)];
            }"""
        )
    assert unseen == []


@pytest.mark.parametrize("name", ["measured", "estimated"])
def test_a_phone_scrolls_down_only(open_page: Open, name: str) -> None:
    page = open_page(name, viewport=_PHONE, is_mobile=True, has_touch=True)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    wide = page.evaluate(
        """(width) => [document.documentElement.scrollWidth,
          [...document.querySelectorAll('body *')].filter((each) =>
            !each.parentElement.closest('.scroll') && each.getBoundingClientRect().right > width + 1
          ).map((each) => each.outerHTML.slice(0, 80))]""",
        _PHONE["width"],
    )
    assert wide == [_PHONE["width"], []]
    assert page.locator(".node").first.bounding_box()["x"] > 0  # the graph starts in sight


def test_marks_of_the_timeline_are_whole(open_page: Open) -> None:
    """The last one too, which may stand at the end of the axis."""
    page = open_page("late")
    hidden = page.evaluate(
        """() => {
          const axis = document.querySelector("svg.lanes")
          const end = axis.getBoundingClientRect().right
          return [...axis.querySelectorAll("text.axis")]
            .filter((mark) => mark.getBoundingClientRect().right > end)
            .map((mark) => mark.textContent)
        }"""
    )
    assert hidden == []


def test_a_bar_leads_to_its_row(open_page: Open) -> None:
    page = open_page()
    page.locator(".launch").nth(19).click()
    row = page.locator("#kernel-20")
    assert row.get_attribute("class") == "chosen"
    row.wait_for(state="visible")
    assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches") is False


def test_who_wants_no_motion_has_none(open_page: Open) -> None:
    for wish, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        page = open_page(reduced_motion=wish)
        script = "getComputedStyle(document.documentElement).scrollBehavior"
        assert page.evaluate(script) == behaviour


@pytest.mark.parametrize(("scheme", "viewport"), [("light", _DESKTOP), ("dark", _PHONE)])
def test_rules_of_accessibility(open_page: Open, scheme: str, viewport: Any) -> None:
    """axe-core: WCAG 2.2 AA and good practice; contrast of text among them."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page("small", viewport=viewport, color_scheme=scheme, bypass_csp=True)
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(open_page: Open, scheme: str) -> None:
    """4.5 to 1 (WCAG AA), in drawings and in what has to be scrolled to, which axe-core skips."""
    page = open_page(color_scheme=scheme)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    page.locator(".launch").first.click()  # its row is marked now
    ratios = page.evaluate(_CONTRAST)
    assert len(ratios) > 1000
    low = [each for each in ratios if each["ratio"] < 4.5]
    assert low == []


_CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = (each, name) => numbers(getComputedStyle(each)[name]);
  const behind = (each) => {
    const box = each.closest('.node, .launch')?.querySelector('.box');
    if (box) return style(box, 'fill');
    const color = style(each, 'backgroundColor');
    return color[3] === 0 && each !== document.body ? behind(each.parentElement) : color;
  };
  const own = (each) => [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return [...document.body.querySelectorAll('*:not(script, title)')].filter(own).map((each) => {
    const front = light(style(each, each.closest('svg') ? 'fill' : 'color'));
    const back = light(behind(each));
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    return { text: each.textContent.slice(0, 40), ratio };
  });
}"""
