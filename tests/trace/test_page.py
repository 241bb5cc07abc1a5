"""The trace page in a real browser, headless."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qgpu
from qgpu.host.trace import load_trace, write_html, write_page, write_trace
from tests.trace.launches import dot_launch

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1500,1250",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no Chromium here: apt install chromium chromium-driver"
    ),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    kernel, result = dot_launch()
    write_trace(folder / "launch.json", kernel, result)
    write_html(folder / "launch.html", load_trace(folder / "launch.json"))
    return folder / "launch.html"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def browser(driver: Any, page: Path) -> Any:
    """The page, freshly opened before its first token; console errors fail the test."""
    driver.get("about:blank")
    driver.get(page.as_uri())
    yield driver
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def text(browser: Any, css: str) -> str:
    shown: str = browser.execute_script(
        "return document.querySelector(arguments[0]).textContent", css
    )
    return shown


def row(browser: Any, name: str) -> list[str]:
    """The lanes of a row of the register table."""
    cells: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('#registers tr')]"
        ".filter(r => r.firstChild.textContent === arguments[0])"
        ".flatMap(r => [...r.children].slice(1).map(c => c.textContent))",
        name,
    )
    return cells


def memory(browser: Any) -> list[str]:
    words: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('#memory td')].map(c => c.textContent)"
    )
    return words


def test_opens_before_the_first_token(browser: Any) -> None:
    assert text(browser, "#title") == "dot"
    assert text(browser, "#now").startswith("0 of 17: the program, the arrays and Go have been fed")
    assert memory(browser)[:11] == ["0", "0", "1", "2", "3", "0", "4", "-5", "6", "0", "100"]
    assert "</script> must not end" in text(browser, "#cuda")
    assert len(browser.execute_script("return document.querySelectorAll('.layer')")) == 45


def test_steps_forward_and_back(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "<|gpu_val_s2_p0_p57|>" in text(browser, "#now")
    assert row(browser, "r1") == ["1", "2", "3", "0"]
    assert row(browser, "active") == ["●", "●", "●", "·"]
    assert row(browser, "goes to") == ["B1", "B1", "B1", "—"]
    press(browser, *[Keys.ARROW_RIGHT] * 3)
    assert row(browser, "r2") == ["4", "-5", "6", "0"]
    press(browser, Keys.END)
    assert memory(browser)[10] == "118"
    assert row(browser, "goes to") == ["exit", "exit", "exit", "—"]
    press(browser, Keys.HOME)
    assert memory(browser)[10] == "100"
    assert row(browser, "r2") == ["0", "0", "0", "0"]
    assert row(browser, "goes to") == ["B0", "B0", "B0", "—"]


def test_blocks_predicates_and_results(browser: Any) -> None:
    browser.find_element("id", "next-block").click()
    browser.find_element("id", "next-block").click()
    assert text(browser, "#now").startswith("6 of 17: <|gpu_exec_b1_w0_m7|> run B1 on warp 0")
    assert "⟶ 4 -10 18 0" in text(browser, "#B1")
    browser.find_element("id", "last").click()
    assert row(browser, "r1 predicate") == ["false", "false", "true", "false"]
    browser.find_element("id", "prev-block").click()
    assert "<|gpu_exec_b2_w0_m4|>" in text(browser, "#now")
    browser.find_element("id", "base").click()
    assert row(browser, "r3") == ["0x4", "0xfffffff6", "0x12", "0x0"]


def test_source_lines_follow(browser: Any) -> None:
    browser.find_element("id", "next").click()
    lit = "return [...document.querySelectorAll(arguments[0])].map(e => Number(e.dataset.line))"
    assert browser.execute_script(lit, "#cuda .hot") == [2, 3]
    assert browser.execute_script(lit, "#ptx .hot") == [32, 34, 36, 39]
    browser.execute_script("document.querySelector('#cuda [data-line=\"4\"]').click()")
    assert "<|gpu_exec_b1_w0_m7|>" in text(browser, "#now")


def test_a_launch_from_ptx_has_no_cuda_panel(browser: Any, tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(int *p) { p[0] = 5; }'
    kernel = qgpu.compile(qgpu.compile(source).ptx, kind="ptx").kernel("k")
    write_page(tmp_path / "ptx.html", kernel, qgpu.launch(kernel, args=[[0]]))
    browser.get((tmp_path / "ptx.html").as_uri() + "#1")
    assert not browser.find_element("id", "panel-cuda").is_displayed()
    assert text(browser, "#ptx .hot").endswith("5;")


def test_which_token_wrote_what(browser: Any) -> None:
    browser.find_element("id", "last").click()
    cell = "document.querySelectorAll('#memory td')[10]"
    assert browser.execute_script(f"return {cell}.title") == (
        "written by token 16: <|gpu_uniform_s2_f0_b0_p118|>"
    )
    browser.execute_script(f"{cell}.click()")
    assert text(browser, "#now").startswith("16 of 17")


def test_readable_in_light_and_dark(browser: Any, tmp_path: Path) -> None:
    browser.find_element("id", "next-block").click()
    colours = []
    for _ in range(2):
        browser.find_element("id", "theme").click()
        ratio = browser.execute_script(CONTRAST)
        assert ratio > 4.5
        colours.append(browser.execute_script("return getComputedStyle(document.body).color"))
        picture = tmp_path / f"{len(colours)}.png"
        assert browser.save_screenshot(str(picture))
        assert picture.stat().st_size > 50_000
    assert colours[0] != colours[1]


CONTRAST = """
const parts = (c) => c.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = (c) => parts(c).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const panel = getComputedStyle(document.querySelector("section")).backgroundColor;
return Math.min(...["h2", ".code", ".tokens .future", "#now code"].map((css) => {
  const e = document.querySelector(css), own = getComputedStyle(e).backgroundColor;
  const back = own.startsWith("rgba(0, 0, 0, 0") ? panel : own;
  const [a, b] = [light(getComputedStyle(e).color), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}));
"""


def test_loads_nothing(page: Path, browser: Any) -> None:
    count = browser.execute_script("return performance.getEntriesByType('resource').length")
    assert count == 0
    content = page.read_text(encoding="utf-8")
    assert "http://" not in content and "https://" not in content and "src=" not in content
