"""Draw the pictures of a report's page in the documentation: wide, dark, and on a phone.

    python tools/report_pictures.py [docs/images]

Needs an OpenCL device, Chromium, and `pip install 'tvm-edge[test]'`.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import tvm_edge

MODEL = "zoo:ssd_mobilenet_v1"
ON_THE_CPU = ["Sigmoid", "NonMaxSuppression"]  # so that there are partitions and copies to see
_TO_THE_CPU = ("End", "ArrowUp", "ArrowUp")  # the suppression, by the keys of the graph
_WIDE, _DARK = {"width": 1280, "height": 1680}, {"width": 1280, "height": 1760}
_SHOWN = 0.75  # of these, as the column of a documentation page is narrower
_PHONE = {"width": 375, "height": 1000}
_GAP = 20  # grey pixels between the screens of the phone


def write_page(path: Path) -> None:
    """Write the page of a model on an OpenCL device with parts on the CPU, and its profile."""
    model = tvm_edge.compile(MODEL, "opencl", fallback=ON_THE_CPU)
    model.warmup()
    model.report.to_html(path, model.profile())


def wide(browser: Browser, url: str) -> Image.Image:
    """Show the top of the page, the end of the graph with an operator chosen."""
    page = _opened(browser, url, _WIDE)
    page.focus(".node[tabindex='0']")
    for key in _TO_THE_CPU:
        page.keyboard.press(key)
    page.locator(".scroll.tall", has=page.locator(".graph")).evaluate(
        "(graph) => { graph.scrollTop = graph.scrollHeight }"
    )
    page.evaluate("window.scrollTo(0, 0)")
    return _smaller(_shot(page))


def dark(browser: Browser, url: str) -> Image.Image:
    """Show kernels, the slowest first, and memory to a reader who prefers dark pages."""
    page = _opened(browser, url, _DARK, color_scheme="dark")
    page.click("#kernels-table th:nth-child(9) button")
    page.evaluate("document.querySelector('#time').scrollIntoView()")
    return _smaller(_shot(page))


def phone(browser: Browser, url: str) -> Image.Image:
    """Show three screens of a phone beside each other."""
    page = _opened(browser, url, _PHONE, is_mobile=True, has_touch=True)
    screens = []
    for script in (
        "window.scrollTo(0, 0)",
        "document.querySelector('.legend').closest('section').querySelector('h3').scrollIntoView()",
        "document.querySelector('#time').scrollIntoView()",
    ):
        page.evaluate(script)
        screens.append(_shot(page))
    width = sum(screen.width for screen in screens) + _GAP * (len(screens) - 1)
    whole = Image.new("RGB", (width, screens[0].height), "#888")
    left = 0
    for screen in screens:
        whole.paste(screen, (left, 0))
        left += screen.width + _GAP
    return whole


def _opened(browser: Browser, url: str, viewport: Any, **options: Any) -> Any:
    page = browser.new_context(viewport=viewport, reduced_motion="reduce", **options).new_page()
    page.goto(url)
    return page


def _shot(page: Any) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _smaller(picture: Image.Image) -> Image.Image:
    width, height = (round(each * _SHOWN) for each in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _few_colors(picture: Image.Image) -> Image.Image:
    """Return a picture of 256 colours: a third of the file, and no colour is off by more than 9."""
    return picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        sys.exit("no Chromium on this machine; run: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        path = Path(name) / "report.html"
        write_page(path)
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=binary, args=flags)
        for draw, file in (
            (wide, "report.png"), (dark, "report-dark.png"), (phone, "report-phone.png")
        ):  # fmt: skip
            picture = draw(browser, path.as_uri())
            _few_colors(picture).save(folder / file, optimize=True)
            print(folder / file, *picture.size)
        browser.close()


if __name__ == "__main__":
    main()
