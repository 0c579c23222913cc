"""The page in Chromium, opened from a file: what it shows is what the program prints."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse

from browser import Browser
from program import BUILD, PROGRAM, arguments, plan
from wasm_test import CONFIG

TRAINING = {"task": "train", "model": "llama-3.1-70b", "machine": "h100", "ranks": "64", "batch-size": "128", "seq-len": "8192"}
INFERENCE = {"task": "infer", "model": "llama-3.1-70b", "machine": "h200", "ranks": "8", "batch-size": "16"}
READY = """new Promise((done) => {
  const look = () => document.body && "ready" in document.body.dataset && !page.is_busy ? done(true) : setTimeout(look, 20);
  look();
})"""
# The bars of a section: the number of its chart, in pixels the end of its last part and the limit, and the total in its text.
BARS = """[...document.querySelectorAll('#%s .bar')].map((bar) => {
  const left = bar.getBoundingClientRect().left, ends = [...bar.querySelectorAll("span")].map((part) => part.getBoundingClientRect().right);
  const limit = bar.querySelector(".limit");
  return {chart: [...document.querySelectorAll(".chart")].indexOf(bar.closest(".chart")), end: Math.max(...ends) - left,
    limit: limit ? limit.getBoundingClientRect().left - left : 0, total: parseFloat(bar.nextElementSibling.textContent)};
})"""
# The pictures of the last run, to look at.
PICTURES = BUILD / "planner/pictures"


def rows_of(text):
    """Returns heading and rows of the table that `shardwise plan` prints, and its lines about refusals."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if "plans fit" in line)
    return [re.split(r"\s{2,}", line) for line in lines[1:end]], [line.strip() for line in lines[end + 2:]]


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        PICTURES.mkdir(exist_ok=True)

    def open(self, flags=None, path=BUILD / "planner.html", files=None):
        """Loads the page with flags in its address."""
        names = {name: "" if value is True else value for name, value in (flags or {}).items()}
        names |= {"file:" + name: text for name, text in (files or {}).items()}
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.call("Page.navigate", url=f"file://{path}" + ("#" + urllib.parse.urlencode(names) if names else ""))
        self.browser.evaluate(READY)

    def show_all(self):
        self.value("document.querySelectorAll('section:not([data-all]) > button').forEach((button) => button.click())")

    def value(self, script):
        return self.browser.evaluate(script)

    def error(self):
        return self.value("document.getElementById('error').textContent")

    def table(self):
        return self.value("[...document.querySelectorAll('#plans tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")

    def refused(self):
        return self.value("[...document.querySelectorAll('#refused li')].map((line) => line.textContent)")

    def set(self, flag, value):
        """Changes a control as a user does."""
        self.value(f"""(() => {{
          const control = document.getElementById({json.dumps(flag)});
          control.value = {json.dumps(value)};
          control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input"));
        }})()""")
        self.browser.evaluate(READY)

    def check_against_program(self, flags, **options):
        self.show_all()
        table, refused = rows_of(plan(flags, "--rows", "10000", **options))
        self.assertGreater(len(table), 1)
        self.assertEqual(self.table(), table)
        self.assertEqual(self.refused(), refused)
        self.assertEqual(self.error(), "")

    def test_training(self):
        self.open(TRAINING)
        self.check_against_program(TRAINING)
        fastest = json.loads(plan(TRAINING, "--json"))["plans"][0]["degrees"]
        axes = " ".join(f"{axis} {fastest[axis]}" for axis in ("tp", "cp", "pp", "dp"))
        self.assertIn(axes, self.value("document.querySelector('#summary h2').textContent"))

    def test_inference(self):
        self.open(INFERENCE)
        self.check_against_program(INFERENCE)

    def test_controls_change_the_plans_and_the_address(self):
        self.open(TRAINING)
        flags = dict(TRAINING)
        for flag, value in [("model", "llama-3.1-8b"), ("ranks", "24"), ("batch-size", "48"), ("machine", "a100"), ("dtype", "float32"),
                            ("tp", "4"), ("zero", "1"), ("recompute", "full"), ("micro-batch-size", "2"), ("memory-cap", "60"),
                            ("overlap", "off"), ("algorithm", "tree"), ("freeze", "model.layers.0.*")]:
            flags[flag] = value
            self.set(flag, value)
            self.check_against_program(flags)
        self.assertEqual(dict(urllib.parse.parse_qsl(self.value("location.hash.slice(1)"))), flags)
        self.assertEqual(self.value("document.getElementById('command').textContent"), shlex.join(["shardwise", "plan", *arguments(flags)]))

    def test_globs_are_separated_by_spaces(self):
        self.open(TRAINING)
        self.set("freeze", "model.embed_tokens.* model.layers.[0-9].*")
        flags = TRAINING | {"freeze": ["model.embed_tokens.*", "model.layers.[0-9].*"]}
        self.check_against_program(flags)
        self.assertEqual(self.value("document.getElementById('command').textContent"), shlex.join(["shardwise", "plan", *arguments(flags)]))

    def test_a_change_of_task_leaves_out_the_flags_of_the_other(self):
        self.open(TRAINING | {"tp": "4"})
        self.set("task", "infer")
        self.check_against_program({name: value for name, value in TRAINING.items() if name != "seq-len"} | {"task": "infer", "tp": "4"})
        self.set("quantize", "int4")
        self.set("group-size", "32")
        self.set("quantize", "")
        self.set("task", "train")
        self.check_against_program(TRAINING | {"tp": "4"})

    def test_slider_of_ranks_goes_in_powers_of_two(self):
        self.open(TRAINING)
        self.value("""(() => {
          const slider = document.querySelector("[data-flag=ranks] input[type=range]");
          slider.value = 7;
          slider.dispatchEvent(new Event("input"));
        })()""")
        self.browser.evaluate(READY)
        self.check_against_program(TRAINING | {"ranks": "128"})

    def test_fewest_ranks(self):
        flags = {name: value for name, value in TRAINING.items() if name != "ranks"} | {"min-gpus": True}
        self.open(flags)
        self.check_against_program(flags)

    def test_pasted_config(self):
        (self.scratch / "config.json").write_text(json.dumps(CONFIG))
        flags = {"task": "train", "model": "config.json", "machine": "h100", "ranks": "12"}
        self.open({"model": "gpt2", "ranks": "12"})
        self.set("model", "config.json")
        self.assertIn("config.json", self.error())
        self.value(f"""(() => {{
          const area = document.querySelector("[data-file='config.json'] textarea");
          area.value = {json.dumps(json.dumps(CONFIG))};
          area.dispatchEvent(new Event("input"));
        }})()""")
        self.browser.evaluate(READY)
        self.check_against_program(flags, directory=self.scratch)

    def test_error_is_that_of_the_program(self):
        flags = TRAINING | {"tp": "3"}
        self.open(flags)
        self.assertEqual(self.error(), plan(flags).strip())
        self.set("tp", "2")
        self.check_against_program(TRAINING | {"tp": "2"})

    def test_nothing_fits(self):
        flags = {"model": "llama-3.1-405b", "ranks": "8"}
        self.open(flags)
        self.assertEqual(self.value("document.querySelector('#summary h2').textContent"), "No split fits")
        self.show_all()
        _, refused = rows_of(plan(flags, "--rows", "10000"))
        self.assertEqual(self.refused(), refused)

    def test_bars_are_as_long_as_what_they_show(self):
        for flags in (TRAINING, INFERENCE):
            self.open(flags)
            for whole in (False, True):
                for chart in ("memory", "time"):
                    self.check_bars(chart, self.value(BARS % chart))
                self.show_all()

    def check_bars(self, chart, bars):
        """Checks that the end of every bar, and the limit, are at the values in their text on one scale for each chart."""
        self.assertGreater(len(bars), 2)
        for of_chart in {bar["chart"] for bar in bars}:
            same = [bar for bar in bars if bar["chart"] == of_chart]
            scale = max(bar["end"] for bar in same) / max(bar["total"] for bar in same)
            for bar in same:
                self.assertAlmostEqual(bar["end"], bar["total"] * scale, delta=1 + 0.06 * scale)  # a pixel; digits of the text
                if chart == "memory":
                    limit = float(re.search(r"limit: ([\d.]+) GB", self.value("document.getElementById('memory').textContent"))[1])
                    self.assertAlmostEqual(bar["limit"], limit * scale, delta=3)

    def test_page_that_the_program_wrote(self):
        model = self.scratch / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG | {"_name_or_path": "<!--<script></script>"}))
        page = self.scratch / "page.html"
        subprocess.run([PROGRAM, "plan", "--html", page, "--model", model, "--ranks", "4", "--tp", "2"], check=True)
        self.open(path=page)
        self.check_against_program({"model": "config.json", "ranks": "4", "tp": "2"}, directory=model)

    def test_installed_page(self):
        prefix = self.scratch / "prefix"
        for directory in ("bin", "share/shardwise"):
            (prefix / directory).mkdir(parents=True)
        shutil.copy(PROGRAM, prefix / "bin")
        shutil.copy(BUILD / "planner.html", prefix / "share/shardwise")
        page = self.scratch / "installed.html"
        subprocess.run([prefix / "bin/shardwise", "plan", "--html", page], check=True)
        self.assertEqual(page.read_bytes(), (BUILD / "planner.html").read_bytes())
        self.open(path=page)
        self.check_against_program({"model": "llama-3.1-8b", "ranks": "8"})

    def test_nothing_is_wider_than_the_page(self):
        for name, flags in (("training", TRAINING), ("inference", INFERENCE)):
            for device, width in (("desktop", 1280), ("phone", 390)):
                for scheme in ("light", "dark"):
                    self.browser.show(width, 900, scheme)
                    self.open(flags)
                    self.browser.screenshot(PICTURES / f"{name}-{device}-{scheme}.png")
                    self.assertEqual(self.value("document.documentElement.scrollWidth"), self.value("document.documentElement.clientWidth"))
                    lightness = sum(map(int, re.findall(r"\d+", self.value("getComputedStyle(document.body).backgroundColor"))))
                    self.assertEqual(lightness > 384, scheme == "light")


if __name__ == "__main__":
    unittest.main()
