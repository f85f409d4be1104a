"""The ledger itself, on its Hypothesis examples: the same checks that ``refimpl verify`` runs."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from refimpl.claims import all_claims, verify
from refimpl.claims.ledger import run

EXAMPLES = settings().max_examples


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda claim: claim.id)
def test_claim(claim):
    finding = run(claim, EXAMPLES, seed=1)
    assert finding.violations == 0, f"{finding.error}\n{finding.witness}"
    assert finding.error is None
    assert finding.examples >= min(EXAMPLES, 60)
    if finding.tightest is not None:
        assert finding.tightest >= 1
        assert finding.measured >= 10, "the hypothesis hardly ever holds: the check is close to vacuous"


def test_verify_reports_every_claim():
    ticks = []
    report = verify(["attention.step", "joint.step"], examples=20, seed=3, progress=lambda *tick: ticks.append(tick))
    assert report["ok"]
    assert [row["id"] for row in report["claims"]] == ["attention.step", "joint.step"]
    for row in report["claims"]:
        assert row["derivation"] == "proved"
        assert row["identities"] > 0
        assert row["examples"] == 20
        assert row["violations"] == 0
    assert [(done, total) for done, total, _ in ticks] == [(i, 4) for i in range(1, 5)]
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("claims", "examples", "message"), [(["attention.stp"], 5, "attention.step"), (None, 0, "got 0")]
)
def test_verify_refuses(claims, examples, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        verify(claims, examples)


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda claim: claim.id)
def test_a_claim_names_code_that_exists(claim):
    parts = claim.code.split(".")
    thing = import_module("refimpl")
    for part in parts[1:]:
        thing = getattr(thing, part, None) or thing.__dataclass_fields__[part]
    assert thing is not None
    assert claim.statement
    assert claim.conditions


def test_every_claim_of_the_text_is_in_the_ledger():
    blueprint = Path(__file__).parent.parent.parent / "shared" / "math" / "blueprint.md"
    if not blueprint.exists():
        pytest.skip("the text that lists the claims is not beside this checkout")
    sections = re.split(r"^## ", blueprint.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = "".join(section for section in sections if section[:2] in ("1.", "2.", "3.", "4.", "5.", "6."))
    of_the_text = set(re.findall(r"^\* `([a-z_]+\.[a-z_]+)`", text, re.MULTILINE))
    ours = {claim for claim in all_claims() if claim.startswith("rounding.")}  # about the code, not the text
    assert set(all_claims()) - of_the_text == {"alternating.majorizer"} | ours  # the first was found on real text
    assert of_the_text <= set(all_claims())
