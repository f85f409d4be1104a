"""The README is executed: its Python blocks run in order, its links lead somewhere, its table is the ledger."""

import re
from pathlib import Path

import pytest

from refimpl.claims import all_claims
from refimpl.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_python_blocks_run(capsys):
    code = blocks(README, "python")
    assert len(code) == 7
    namespace = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "->" in out
    assert "Wf: expected real eigenvalues, got the imaginary part 1" in out
    assert "β_j = exp(−½‖u_j‖²) is missing (attention.step)" in out


def test_the_extractor_sees_a_wrong_block():
    with pytest.raises(AssertionError):
        exec(blocks(README.replace("0.752975", "0.752875"), "python")[0], {})


def test_console_blocks_name_real_commands():
    console = "".join(blocks(README, "console"))
    assert re.findall(r"^pip install '\.\[(\w+)\]' && (.*)$", console, re.MULTILINE) == [
        ("cli", "refimpl verify"),
        ("test", "pytest"),
    ]
    used = re.findall(r"(?:^|&& )refimpl ((?:rho |activation |check |vectors )?[\w-]+)", console, re.MULTILINE)
    assert len(used) >= 6
    assert set(used) <= set(COMMANDS)


def test_relative_links_exist():
    targets = [target for target in re.findall(r"\]\(([^)#]+)", README) if not target.startswith("http")]
    assert len(targets) > 40
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_table_of_claims_is_the_ledger():
    rows = re.findall(
        r"^\| `([a-z_]+\.[a-z_]+)` \| (.*) \| \[.*\]\((.*)\) \| \[`(.*)`\]\(.*\) \|$", README, re.MULTILINE
    )
    ledger = [(c.id, c.statement, f"derivations/{c.notebook}", c.code) for c in all_claims().values()]
    assert [(i, statement.replace("\\|", "|"), n, f"refimpl.{code}") for i, statement, n, code in rows] == ledger
