"""The site: no warning, claims, equations and functions lead to each other, and nothing is loaded from elsewhere.

It is built here without executing the notebooks, and with rows of the ledger's form in place of its run; ``.ci/run``
builds it in full. Two small sites show that a notebook's failing assertion, and a script from elsewhere, end a build.
"""

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl
from refimpl import certificates, definitions
from refimpl.claims import all_claims

ROOT = Path(__file__).parent.parent
NEEDED = ("sphinx", "myst_nb", "furo", "sphinx_proof", "sphinxcontrib.bibtex", "mathjax")


def installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


MISSING = [name for name in NEEDED if not installed(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the site needs {', '.join(MISSING)}: pip install '.[docs]'")

BUILD = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
STUBBED = f"""
import refimpl.claims

def verify(examples):
    rows = [
        dict(id=c.id, statement=c.statement, conditions=c.conditions, notebook=c.notebook, code=c.code, identities=2,
             examples=examples, violations=0, measured=1, tightest=1.25, witness="a_b |c| *d*", error=None, ok=True)
        for c in refimpl.claims.all_claims().values()
    ]
    return dict(ok=True, examples=examples, seed=0, claims=rows)

refimpl.claims.verify = verify
{BUILD}
"""


def build(folder, code, *options):
    """Build ``folder``/docs into ``folder``/build/site; the finished process."""
    out = folder / "build" / "site"
    command = [
        sys.executable,
        "-c",
        code,
        "-q",
        "-T",
        "-W",
        "--keep-going",
        "-n",
        *options,
        str(folder / "docs"),
        str(out),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site: {page: its text}."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "derivations"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    run = build(folder, STUBBED, "-D", "nb_execution_mode=off")
    assert run.returncode == 0, run.stderr[-3000:]
    out = folder / "build" / "site"
    return {page.relative_to(out).as_posix(): page.read_text(encoding="utf-8") for page in out.rglob("*.html")}


@pytest.fixture(scope="module")
def companion():
    """The extension of ``docs/``."""
    spec = importlib.util.spec_from_file_location("companion", ROOT / "docs" / "_ext" / "companion.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(site):
    """Object → the API page that describes it."""
    api = {page: text for page, text in site.items() if page.startswith("api/")}
    return {name: page for page, text in api.items() for name in re.findall(r'id="(refimpl\.[\w.]+)"', text)}


def entry(site, name):
    """What the API says of one object: from its heading to the next one's. A dataclass says it of its fields."""
    text, owner = site[described(site)[name]], name.rpartition(".")[0]
    if 'class="py attribute"' in text.partition(f'id="{name}"')[0][-200:]:
        name = owner
    return re.split(r'id="refimpl\.[\w.]+"', text.partition(f'id="{name}"')[2])[0]


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda claim: claim.id)
def test_a_claim_its_equation_and_its_function_lead_to_each_other(claim, site, companion):
    chapter, function = f"derivations/{claim.notebook.removesuffix('.md')}.html", companion.documented(claim.code)
    equation, page = f"equation-{companion.label(claim.id)}", described(site)[function]
    anchor = claim.id.replace(".", "-").replace("_", "-")
    listed = site["claims.html"].partition(f'id="claim-{anchor}"')[2].partition("<section")[0]
    assert re.sub(r"\s+", " ", claim.statement).split()[-1] in listed
    assert f'href="{page}#{function}"' in listed
    assert f'href="{chapter}#{anchor}"' in listed
    assert f'id="{equation}"' in site[chapter]
    assert f'href="../claims.html#claim-{anchor}"' in site[chapter]
    under = site[chapter].partition(f'id="{equation}"')[2].partition("in-code")[2][:600]
    assert f'href="../{page}#{function}"' in under
    assert f'href="../{chapter}#{equation}"' in entry(site, function)


def test_every_other_equation_that_is_a_function_is_linked(site, companion):
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "derivations").glob("*.md"))
    assert companion.EQUATIONS.keys() <= set(re.findall(r"^\$\$ \(([\w-]+)\)$", text, re.MULTILINE))
    for equation, function in companion.equations().items():
        assert f"#equation-{equation}" in entry(site, function)


def test_every_public_object_has_its_entry(site, companion):
    names = [f"refimpl.{name}" for name in refimpl.__all__ if callable(getattr(refimpl, name))]
    names += [f"refimpl.testing.{name}" for name in refimpl.testing.__all__]
    for module in (certificates, definitions):
        functions = inspect.getmembers(module, lambda thing: inspect.isfunction(thing) or inspect.isclass(thing))
        names += [f"{module.__name__}.{name}" for name, thing in functions if thing.__module__ == module.__name__]
    names = [name for name in names if not name.rpartition(".")[2].startswith("_")]
    assert len(names) > 40
    assert [name for name in names if companion.documented(name) not in described(site)] == []
    assert "ArrayLike" in entry(site, "refimpl.attention.AttentionEnergy.step")  # types are shown, aliases by name


def test_nothing_is_loaded_from_elsewhere(site, companion):
    assert [url for text in site.values() for url in companion.external(text)] == []
    assert re.search(r'<script[^>]+src="\.\./_static/mathjax/tex-chtml\.js', site["derivations/01_attention.html"])


def test_a_theorem_ends_where_its_derivation_begins(site):
    text = site["derivations/08_rounding.html"]
    theorem = text.partition('id="theorem-rounding.split"')[2]
    statement, _, after = theorem.partition("What was checked of it")
    assert 'id="equation-eq-rounding-split"' in statement
    assert "1: no rounding." not in statement
    assert "1: no rounding." in after


def test_a_picture_leads_to_its_own_size(site):
    pictures = re.findall(r'<a [^>]*href="([^"]+)"[^>]*><img [^>]*src="([^"]+)"', site["idea.html"])
    assert len(pictures) == site["idea.html"].count("<img ")
    assert len(pictures) > 3
    assert all(link == picture for link, picture in pictures)


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script async src='http://cdn.example/x.js'></script>",
        '<script src="//cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://cdn.example/x.css">',
        '<link href="https://fonts.example/css?family=x" rel="preconnect"/>',
        '<img\n alt="x" src="https://example.org/x.png">',
    ],
)
def test_a_page_that_loads_from_elsewhere_is_seen(html, companion):
    assert companion.external(f"<p>x</p>{html}") != []


def test_a_link_to_follow_is_not_loaded(companion):
    assert companion.external('<a href="https://arxiv.org">x</a><script src="_static/x.js"></script>') == []
    assert companion.external_css("a { color: red } b { background: url(x.png) }") == []
    assert companion.external_css('@import "https://x.example/y.css"; b { src: url(//x.example/f.woff) }') == [
        "https://x.example/y.css",
        "//x.example/f.woff",
    ]


def test_a_claim_that_fails_ends_the_build(companion):
    row = {"id": "a.b", "ok": False, "error": "derivation missing", "witness": None}
    with pytest.raises(Exception, match=r"a\.b: derivation missing"):
        companion.ledger_page({"claims": [row]})


def test_a_docstring_in_plain_text(companion):
    text = "|x| and a_ b, ``z**2``.\n\nParameters\n----------\nx, y : first\n    and more.\n\n    a = b *\n    c"
    assert companion._restructured(text) == [
        r"\|x\| and a\_ b, ``z**2``.",
        "",
        ".. rubric:: Parameters",
        "",
        "``x, y``",
        "    first",
        "    and more.",
        "",
        r"    | a = b \*",
        "    | c",
        "",
    ]


def test_a_citation_gets_its_number_once_and_outside_code(companion):
    bibliography = "@article{hunter2004,\n}\n@book{beck2017,\n}"
    text = (
        "A step (Hunter and\nLange 2004), a Beck $2017$ and\n\n```python\nBeck 2017\n```\n\nBeck (2017). Beck (2017)."
    )
    assert companion._cited(text, bibliography) == (
        "A step (Hunter and\nLange 2004) {cite}`hunter2004`, a Beck $2017$ and\n\n```python\nBeck 2017\n```\n\n"
        "Beck (2017) {cite}`beck2017`. Beck (2017)."
    )


def test_a_claim_in_running_text_leads_to_its_derivation(companion):
    text = "By `joint.step`.\n# `joint.step`\n[`joint.step`](x.md) `joint.stepp`\n```python\n`joint.step`\n```"
    assert companion._with_claims(text) == text.replace("By `joint.step`", "By [`joint.step`](#joint.step)")


NOTEBOOK = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

See [`Rho`](../refimpl/rho.py).

```{{code-cell}} ipython3
print(1 + 1)
assert {assertion}
```
"""


def small_site(folder, assertion, index="# Start\n\n```{toctree}\nderivations/01_small\n```\n"):
    """A site of one notebook, with this project's configuration."""
    (folder / "derivations").mkdir()
    (folder / "derivations" / "01_small.md").write_text(NOTEBOOK.format(assertion=assertion), encoding="utf-8")
    docs = folder / "docs"
    shutil.copytree(ROOT / "docs" / "_ext", docs / "_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "_static", docs / "_static")
    shutil.copy(ROOT / "docs" / "references.bib", docs)
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")  # of the API it has no page
    (docs / "conf.py").write_text(conf + '\nnitpick_ignore_regex = [(r".*", r".*")]\n', encoding="utf-8")
    (docs / "index.md").write_text(index, encoding="utf-8")
    return build(folder, BUILD)


def test_a_notebook_is_executed_and_can_be_downloaded(tmp_path):
    run = small_site(tmp_path, "1 + 1 == 2")
    assert run.returncode == 0, run.stderr[-3000:]
    folder = tmp_path / "build" / "site" / "derivations"
    assert 'href="01_small.ipynb"' in (folder / "01_small.html").read_text(encoding="utf-8")
    notebook = json.loads((folder / "01_small.ipynb").read_text(encoding="utf-8"))
    [code] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code["outputs"][0]["text"] == ["2\n"]
    assert "[`Rho`](../refimpl/rho.py)" in "".join(notebook["cells"][0]["source"])


def test_a_failing_assertion_ends_the_build(tmp_path):
    run = small_site(tmp_path, "1 + 1 == 3")
    assert run.returncode != 0
    assert "AssertionError" in run.stderr


def test_a_script_from_elsewhere_ends_the_build(tmp_path):
    index = '# Start\n\n<script src="https://cdn.example/x.js"></script>\n\n```{toctree}\nderivations/01_small\n```\n'
    run = small_site(tmp_path, "1 + 1 == 2", index)
    assert run.returncode != 0
    assert "loaded from elsewhere: index.html: https://cdn.example/x.js" in run.stderr
