"""The pages in a real Chromium: pointed at, clicked, walked by keyboard; the console stays empty."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pivot.report import write_comparison, write_report
from pivot.report.tokens import save_token_figures
from pivot.token_credit import CreditMap
from pivot.token_measures import MEASURES, CreditedResponse

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed: pip install selenium"
)
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium here: apt-get install chromium chromium-driver"
)
GEOMETRY3K = Path(__file__).parents[3] / "shared" / "data" / "geometry3k" / "train.parquet"
HOSTILE = "</script><script>window.broken = 1</script></style><img src=x onerror='window.broken = 2'>"
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const pixel = (...layers) => {
  for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = (rgb) => rgb.map((v) => linear(v / 255))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const paper = getComputedStyle(document.body).backgroundColor;
return Math.min(...[...document.querySelectorAll(".token")].map((token) => {
  const style = getComputedStyle(token);
  const pair = [light(pixel(paper, style.backgroundColor)), light(pixel(paper, style.color))].sort();
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}));
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def show(chromium):
    """Opens a page at a width and theme, no wider than the window; afterwards the console must be empty."""

    def open_page(page: Path, width: int = 1280, theme: str = "light"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        # Without motion a click never meets a page that is still scrolling.
        wanted = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        media = {"features": [{"name": name, "value": value} for name, value in wanted.items()]}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        chromium.get(page.as_uri())
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
        return chromium

    yield open_page
    assert chromium.get_log("browser") == []


def one(browser, selector: str):
    return browser.find_element(By.CSS_SELECTOR, selector)


def every(browser, selector: str) -> list:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def card_rows(browser) -> dict[str, str]:
    """The card under the pointer: label -> number."""
    script = """return [...document.querySelectorAll("#card tr")]
        .map((row) => [...row.children].map((cell) => cell.textContent));"""
    return dict(browser.execute_script(script))


def tints(browser) -> tuple[str, ...]:
    """How strongly, and to which side, every token is coloured."""
    script = """return [...document.querySelectorAll(".token")]
        .map((token) => token.className + token.style.getPropertyValue("--strength"));"""
    return tuple(browser.execute_script(script))


def focused(browser, field: str):
    return browser.execute_script(f"return document.activeElement.{field}")


def shown_groups(browser) -> list[dict]:
    return json.loads(one(browser, "#group-data").get_attribute("textContent"))


def test_headline_and_readouts_show_what_metrics_hold(show, new_run):
    folder = new_run("a", steps=40)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    browser = show(write_report(folder, figures=False))
    first, last = (100 * lines[i]["reward/accuracy"] for i in (0, -1))
    tile = one(browser, '[data-tile="training"]').text
    assert f"{last:.1f}%" in tile
    assert f"{last - first:+.1f} points from {first:.1f}%" in tile
    assert f"{lines[-1]['buffer/size']:,}" in one(browser, '[data-tile="buffer"]').text
    assert "60.0%" in one(browser, '[data-tile="evaluation"]').text
    chart = one(browser, 'figure[data-chart="training-accuracy"] svg')
    browser.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.HOME)
    assert one(browser, "#card .where").text == "step 1"
    assert card_rows(browser)["training"] == f"{first:.1f}%"
    chart.send_keys(Keys.ARROW_RIGHT)
    assert card_rows(browser)["training"] == f"{100 * lines[1]['reward/accuracy']:.1f}%"
    chart.send_keys(Keys.END)
    assert card_rows(browser)["training"] == f"{last:.1f}%"
    phases = one(browser, 'figure[data-chart="phases"] svg')
    ActionChains(browser).move_to_element_with_offset(phases, 100, 0).perform()
    step = int(one(browser, "#card .where").text.removeprefix("step "))
    assert card_rows(browser)["rollout"] == f"{lines[step - 1]['time/rollout']:.3g} s"
    assert one(browser, "#card").is_displayed()


def test_the_token_map_by_mouse(show, new_run):
    browser = show(write_report(new_run("a", steps=20), figures=False))
    group = shown_groups(browser)[0]
    response = group["responses"][0]
    tokens = every(browser, ".side.correct .response:nth-of-type(1) .token")
    assert [t.get_attribute("textContent") for t in tokens] == response["tokens"]
    warmest = max(range(len(tokens)), key=lambda i: response["utility"][i])
    ActionChains(browser).move_to_element(tokens[warmest]).perform()
    rows = card_rows(browser)
    assert float(rows["U  utility"].replace("−", "-")) == pytest.approx(
        response["utility"][warmest], rel=6e-3
    )
    assert float(rows["c  support"].replace("−", "-")) == pytest.approx(
        response["support"][warmest], rel=6e-3
    )
    assert set(rows) == {
        *("U  utility", "c  support", "F  future", "u  gate", "A  advantage before", "A′  advantage after"),
        *("probability", "entropy"),
    }
    seen = {tints(browser)}
    for quantity, symbol in (
        ("support", "c"),
        ("future", "F"),
        ("gate", "u"),
        ("advantage", "A"),
        ("advantage_final", "A′"),
    ):
        one(browser, f'input[value="{quantity}"] + span').click()
        assert one(browser, ".legend .about").text.startswith(f"{symbol}:")
        seen.add(tints(browser))
    assert len(seen) == 6
    assert "cool" in every(browser, ".side.wrong .token")[0].get_attribute("class")
    assert len(every(browser, ".pictures img")) == 2


def test_the_gallery_by_mouse_and_its_orders(show, new_run):
    browser = show(write_report(new_run("a", steps=20), figures=False))
    groups = shown_groups(browser)
    tabs = every(browser, '[role="tab"]')
    assert [t.find_element(By.CLASS_NAME, "name").text for t in tabs] == [g["id"] for g in groups]
    tabs[2].click()
    assert tabs[2].get_attribute("aria-selected") == "true"
    assert groups[2]["id"] in one(browser, ".about-group").text
    for value, key in (("1", "dependency"), ("2", "step")):
        one(browser, f'#order option[value="{value}"]').click()
        best = max(groups, key=lambda g: (g[key], g["spread"]))
        assert one(browser, '[role="tab"] .name').text == best["id"]
        assert best["id"] in one(browser, ".about-group").text


def test_everything_by_keyboard_alone(show, new_run):
    browser = show(write_report(new_run("a", steps=20), figures=False))
    groups = shown_groups(browser)
    press = lambda *keys: ActionChains(browser).send_keys(*keys).perform()  # noqa: E731
    browser.execute_script("document.getElementById('order').focus()")
    press(Keys.TAB)
    assert focused(browser, "getAttribute('role')") == "tab"
    press(Keys.ARROW_RIGHT)
    assert groups[1]["id"] in one(browser, ".about-group").text
    press(Keys.END)
    assert groups[-1]["id"] in one(browser, ".about-group").text
    press(Keys.HOME, Keys.TAB)
    assert focused(browser, "value") == "utility"
    press(Keys.ARROW_RIGHT)
    assert focused(browser, "value") == "support"
    assert one(browser, ".legend .about").text.startswith("c:")
    press(Keys.TAB)
    while focused(browser, "tagName") == "SUMMARY":
        press(Keys.TAB)
    assert focused(browser, "index") == 0
    press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert focused(browser, "index") == 2
    assert one(browser, "#card code").get_attribute("textContent") == groups[0]["responses"][0]["tokens"][2]
    press(Keys.ARROW_DOWN)
    below = focused(browser, "index")
    assert below > 3
    press(Keys.ARROW_UP)
    assert focused(browser, "index") == 2
    press(Keys.END)
    assert focused(browser, "index") == len(groups[0]["responses"][0]["tokens"]) - 1
    assert "support" in focused(browser, "ariaLabel")
    press(Keys.ESCAPE)
    assert not one(browser, "#card").is_displayed()
    press(Keys.TAB)
    assert focused(browser, "index") == 0


def test_hostile_text_does_nothing_and_reads_as_it_is(show, new_run):
    folder = new_run("a", steps=20)
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {
            "question": HOSTILE,
            "answer": HOSTILE,
            "prompt_id": HOSTILE + str(line["step"]),
            "task": HOSTILE,
        }
        for response in line["responses"]:
            response["tokens"][:2] = [HOSTILE, "</style>"]
            response |= {"extracted": HOSTILE, "reason": HOSTILE}
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser = show(write_report(folder, figures=False))
    ActionChains(browser).move_to_element(every(browser, ".token")[0]).perform()
    assert browser.execute_script("return window.broken") is None
    assert one(browser, ".question").text == HOSTILE
    assert one(browser, ".token").get_attribute("textContent") == HOSTILE
    assert one(browser, "#card code").get_attribute("textContent") == HOSTILE
    assert len(every(browser, "style")) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_token_can_be_read_in_both_themes_and_the_switch_turns_them(show, new_run, theme):
    browser = show(write_report(new_run("a", steps=20), figures=False), theme=theme)
    one(browser, 'input[value="advantage"] + span').click()
    assert browser.execute_script(CONTRAST) > 4.5
    paper = one(browser, "body").value_of_css_property("background-color")
    one(browser, "#theme").click()
    assert one(browser, "body").value_of_css_property("background-color") != paper
    assert browser.execute_script(CONTRAST) > 4.5


def test_a_thousand_steps_open_quickly_at_a_phones_width(chromium, show, new_run):
    page = write_report(new_run("long", steps=1000), figures=False)
    # Processor time of the page's thread, which other processes on the machine don't lengthen.
    chromium.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser = show(page, width=390, theme="dark")
    spent = {m["name"]: m["value"] for m in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    assert 0 < spent["TaskDuration"] < 2
    assert len(every(browser, "figure.chart svg")) > 10


@pytest.mark.skipif(not GEOMETRY3K.exists(), reason="Geometry3K is not beside the repository")
def test_real_images_are_shown_on_the_page_and_in_the_figure(show, new_run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = next(parquet.ParquetFile(GEOMETRY3K).iter_batches(4, columns=["images"])).to_pylist()
    folder = new_run("a", steps=20)
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()][:4]
    for line, row in zip(lines, rows, strict=True):
        image = base64.b64encode(row["images"][0]["bytes"]).decode()
        line["images"] = line["corrupted_images"] = [f"data:image/png;base64,{image}"]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser = show(write_report(folder, figures=False))
    assert all(
        image.get_property("naturalWidth") > 20 for image in every(browser, ".gallery img, .pictures img")
    )
    assert len(save_token_figures(shown_groups(browser)[:1], tmp_path)) == 2


def test_methods_without_utility_offer_what_they_have(show, new_run):
    browser = show(write_report(new_run("d", steps=20, method="dapo"), figures=False))
    assert [i.get_attribute("value") for i in every(browser, ".switch input")] == [
        "advantage",
        "advantage_final",
    ]


def test_a_comparison_opens_and_names_the_numbers_of_its_tables(show, new_run, tmp_path):
    folders = [new_run("d", steps=20, method="dapo", gain=0.25), new_run("p", steps=20)]
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = [{key: line[key] for key in ("step", "reward/accuracy")} for line in lines]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    browser = show(write_comparison(folders, tmp_path / "out"))
    assert one(browser, "#table-main tbody b").text == "60.00"
    chart = one(browser, 'figure[data-chart="compared-training-accuracy"] svg')
    browser.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.END)
    assert card_rows(browser)["pivot"] == f"{100 * kept[-1]['reward/accuracy']:.1f}%"
    one(browser, ".sources summary").click()
    assert "| pivot | **60.00** |" in one(browser, ".sources pre").text


def test_a_real_run_and_its_comparison(show, tmp_path):
    """What the trainer itself writes, not a generated folder: two methods, three steps each."""
    from pivot import recipes, train
    from pivot.config import apply_settings

    small = ["train.steps=3", "train.prompts_per_step=4", "train.minibatch_prompts=2", "rollout.responses=4",
             "rollout.max_tokens=48", "rollout.max_tries=2", "data.size=12", "data.validation_size=4", "eval.every=2",
             "eval.sets=test", "eval.final_prompts=4", "eval.final_samples=2", "log.rollouts_every=1"]  # fmt: skip
    for method, own in (("dapo", []), ("pivot", ["method.warmup_share=0"])):
        config = apply_settings(recipes.get("tiny"), [f"method={method}", *small, *own])
        train(config, tmp_path / method, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "pivot" / "metrics.jsonl").read_text().splitlines()]
    browser = show(write_report(tmp_path / "pivot", figures=False))
    assert f"{100 * lines[-1]['reward/accuracy']:.1f}%" in one(browser, '[data-tile="training"]').text
    assert f"{lines[-1]['buffer/size']:,}" in one(browser, '[data-tile="buffer"]').text
    written = (tmp_path / "pivot" / "rollouts.jsonl").read_text().splitlines()
    texts = {"".join(response["tokens"]) for row in written for response in json.loads(row)["responses"]}
    shown = {
        "".join(response["tokens"]) for group in shown_groups(browser) for response in group["responses"]
    }
    assert shown
    assert shown <= texts
    before = tints(browser)
    assert len(before) > 20
    one(browser, 'input[value="support"] + span').click()
    assert tints(browser) != before
    scores = json.loads((tmp_path / "pivot" / "eval" / "scores.json").read_text())["evaluations"]
    after = next(e for e in scores if (e["name"], e["when"], e["blank"]) == ("tiny-test", "after", False))
    page = write_comparison([tmp_path / "dapo", tmp_path / "pivot"], tmp_path / "out")
    assert f"{100 * after['accuracy']:.2f}" in one(show(page), "main").text


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_token_credit_of_a_long_hostile_response(show, tmp_path, theme, width):
    texts = [HOSTILE, *(f" word{i}" for i in range(199))]
    values = {measure.key: [measure.neutral + (i % 7 - 3) for i in range(200)] for measure in MEASURES}
    shown = CreditedResponse(tuple(texts), values, [-0.5] * 200, [i < 80 for i in range(200)])
    other = CreditedResponse(("a", "b"), {key: [0.0, 1.0] for key in values}, [-1.0] * 2)
    found = CreditMap(HOSTILE, HOSTILE, HOSTILE, MEASURES, (shown, other), facts={"Prompt": HOSTILE})
    browser = show(found.write(tmp_path / "credit.html"), width, theme)
    assert browser.execute_script("return window.broken") is None
    assert len(every(browser, ".token")) == 200 * len(MEASURES)
    assert every(browser, ".token")[0].text == HOSTILE
    assert len(every(browser, ".token.kept")) == 80
    assert browser.execute_script(CONTRAST) > 4.5
    ActionChains(browser).move_to_element(every(browser, ".measure:nth-child(4) .token")[5]).perform()
    assert len(every(browser, ".token.same")) == len(MEASURES), "outlined in every text"
    assert card_rows(browser)["U  utility"] == "2"
    assert card_rows(browser)["w  PGPO weight"] == "3"
    before = tints(browser)
    # Scrolled to the top of the window, both would lie under the navigation.
    browser.execute_script("arguments[0].click()", one(browser, ".switch label:last-child"))
    assert tints(browser) != before
    browser.execute_script("arguments[0].click()", one(browser, ".answers button:last-child"))
    assert len(every(browser, ".token")) == 2 * len(MEASURES)
    one(browser, ".answers button:last-child").send_keys(Keys.HOME)
    assert len(every(browser, ".token")) == 200 * len(MEASURES)
