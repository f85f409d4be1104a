"""The pages in docs/ are executed: their Python runs in order, their commands exist, their links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from refimpl.cli import COMMANDS
from refimpl.testing.conformance import CHECKS

DOCS = Path(__file__).parent.parent / "docs"
# docs/derivations is a copy that building the site leaves; the notebooks have tests of their own
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "derivations")


def sections(page):
    """(heading, its Python blocks) of a page."""
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for heading, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        code = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if code:
            yield heading, code


SECTIONS = [pytest.param(code, id=f"{page.stem}-{heading}") for page in PAGES for heading, code in sections(page)]


@pytest.mark.parametrize("code", SECTIONS)
def test_python_runs(code):
    for framework in ("torch", "jax"):
        if any(f"import {framework}" in block for block in code) and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    namespace = {}
    for block in code:
        exec(compile(block, "docs", "exec"), namespace)


def test_check_your_implementation_has_both_frameworks():
    headings = [heading for heading, _ in sections(DOCS / "check.md")]
    assert headings == ["In PyTorch", "In JAX"]


def test_a_wrong_block_fails():
    code = dict(sections(DOCS / "check.md"))["In JAX"]
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    with pytest.raises(AssertionError, match="exp"):
        exec("\n".join(["import refimpl.testing", *code]).replace("- 0.5 *", "- 0.4 *"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")]
    assert [target for target in targets if not (page.parent / target).exists()] == []
    commands = re.findall(r"^refimpl ((?:rho |activation |check |vectors )?[\w-]+)", text, re.MULTILINE)
    assert set(commands) <= set(COMMANDS)


@pytest.mark.parametrize("page", sorted((DOCS / "contributing").glob("*.md")), ids=lambda page: page.stem)
def test_the_files_to_touch_exist(page):
    files = set(re.findall(r"`((?:refimpl|tests|docs|derivations)/[\w/.-]+)`", page.read_text(encoding="utf-8")))
    assert len(files) > 3
    assert [file for file in files if "SECTION" not in file and not (DOCS.parent / file).exists()] == []


def test_every_check_is_described():
    table = (DOCS / "check.md").read_text(encoding="utf-8").partition("## What is checked")[2]
    described = {name for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for name in row.strip().split(", ")}
    assert {check.name for checks in CHECKS.values() for check in checks} == described - {"check", "---"}
