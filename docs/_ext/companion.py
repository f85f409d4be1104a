"""What makes the site of the repository: the notebooks, the claims, and the links between equations and functions.

Nothing is written twice. The notebooks stay in ``derivations/``, readable as they are; the site reads copies in which
a claim is a theorem, a labelled equation names the function that it is, and a link to a source file leads to that
function's page. Which function an equation is comes from the ledger, and for an equation that is no claim from
``EQUATIONS``. The other way, each function's page names its equations. The page of claims is what ``verify`` returns.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError
from sphinx.util.inspect import TypeAliasForwardRef

from refimpl.claims import all_claims, verify

NOTEBOOKS = Path(__file__).parents[2] / "derivations"

# The equations that are no claim by themselves, with the function that each is.
EQUATIONS = {
    "eq-attention-energy": "refimpl.AttentionEnergy.value",
    "eq-residual-energy": "refimpl.ResidualAttentionEnergy.value",
    "eq-residual-gate": "refimpl.ResidualAttentionEnergy.step",
    "eq-ffn-energy": "refimpl.FeedForwardEnergy.value",
    "eq-apollonius-ball": "refimpl.experiments.apollonius.ball",
    "eq-truncated-share": "refimpl.certificates.truncated_share",
    "eq-prox-derivative": "refimpl.Activation.prox_derivative",
    "eq-diagonal-lyapunov": "refimpl.asymmetric.diagonal_lyapunov",
}


def label(claim: str) -> str:
    """The label of the equation that states a claim: ``eq-attention-step`` for ``attention.step``."""
    return "eq-" + re.sub(r"[._]", "-", claim)


@functools.cache
def equations() -> dict[str, str]:
    """Equation → the full name of its function."""
    named = EQUATIONS | {label(claim.id): claim.code for claim in all_claims().values()}
    return {equation: documented(name) for equation, name in named.items()}


def documented(name: str) -> str:
    """The name under which the API pages have an object: that of the module that defines it.

    Raises ``AttributeError`` or ``ValueError`` where there is no such object.
    """
    module, parts = name, []
    while True:
        try:
            owner: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            parts.insert(0, last)
    if not parts:
        return module
    found = getattr(owner, parts[0])
    home, first = getattr(found, "__module__", module), getattr(found, "__qualname__", parts[0])
    return ".".join([home, first, *parts[1:]])


# ------------------------------------------------------------------------------------------------ the pages


def copy_notebooks(app: Sphinx, config: Config) -> None:
    """Put the notebooks below the pages; a copy is replaced only where it differs."""
    target = Path(app.srcdir) / "derivations"
    target.mkdir(exist_ok=True)
    names = {path.name for path in NOTEBOOKS.glob("*.md")}
    for name in names:
        if not (target / name).exists() or (target / name).read_bytes() != (NOTEBOOKS / name).read_bytes():
            shutil.copy(NOTEBOOKS / name, target / name)
    for stale in {path.name for path in target.glob("*.md")} - names:
        (target / stale).unlink()


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """From a page as it is read in the repository to that page of the site."""
    text = source[0]
    if docname == "claims":
        text = text.replace("```{ledger}\n```\n", ledger_page(verify(examples=app.config.ledger_examples)))
    text = re.sub(r"\[`([^`\]]+)`\]\((?:\.\./)+(refimpl/[\w/]+)\.py\)", _to_function, text)
    text = re.sub(r"\]\([\w./]*\.md#([a-z]+\.[a-z_]+)\)", r"](#\1)", text)
    if docname.startswith("derivations/"):
        text = text.replace("](../docs/", "](../")
        text = re.sub(_CLAIM, _to_theorem, text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(_HEAD, rf"\g<0>{_DOWNLOAD.format(docname.rpartition('/')[2])}", text, count=1, flags=re.MULTILINE)
    else:
        text = re.sub(r"\]\(((?:\.\./)*)\.\./derivations/", r"](\1derivations/", text)
    text = re.sub(r"^\$\$ \(([\w-]+)\)$", _with_function, text, flags=re.MULTILINE)
    source[0] = _cited(_with_claims(text), (Path(app.srcdir) / "references.bib").read_text(encoding="utf-8"))


_HEAD = r"^# .*\n"
_DOWNLOAD = """
<p class="notebook-download"><a href="{0}.ipynb" download>Download this chapter as an executed notebook</a></p>
"""
# a claim goes to the bold words, or the cell, that its derivation begins with
_CLAIM = r"^\*\*Claim\*\* `([\w.]+)`( \(ours\))?\. (.*?)(?=^(?:\*\*(?!Claim)|```\{code-cell\}))"


def _to_theorem(match: re.Match[str]) -> str:
    name, ours, statement = match[1], ", ours" if match[2] else "", match[3]
    title = f":::{{prf:theorem}} `{name}`{ours}\n:label: theorem-{name}\n\n"
    return f"{title}{statement.rstrip()}\n:::\n\n{{ref}}`What was checked of it <claim-{name}>`.\n\n"


def _with_function(match: re.Match[str]) -> str:
    """The equation's end, and under it the function that it is."""
    function = equations().get(match[1])
    if function is None:
        return match[0]
    short = ".".join(part for part in function.split(".") if part != "refimpl")
    return f"{match[0]}\n\n```{{container}} in-code\n{{py:obj}}`{short.partition('.')[2]} <{function}>`\n```\n"


def _outside_code(text: str) -> list[str]:
    """The text in pieces; those of even index are outside code."""
    return re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)


def _cited(text: str, bibliography: str) -> str:
    """The first "Hunter and Lange (2004)" with its number in the references, and so for each entry."""
    parts = _outside_code(text)
    for key, author, year in re.findall(r"^@\w+\{(([a-z]+)(\d+)),", bibliography, re.MULTILINE):
        # the author, then whatever is neither a bracket nor code or mathematics, then the year
        named = re.compile(rf"\b{author.title()}\b[^;`$()\[\]|]{{0,90}}?\(?(?:[A-Z]\w+ )?{year}\)?")
        for index in range(0, len(parts), 2):
            parts[index], found = named.subn(rf"\g<0> {{cite}}`{key}`", parts[index], count=1)
            if found:
                break
    return "".join(parts)


def _with_claims(text: str) -> str:
    """The id of a claim in running text leads to its derivation; in headings, options and links it is left alone."""
    ids = "|".join(re.escape(claim) for claim in all_claims())
    parts = _outside_code(text)
    for index in range(0, len(parts), 2):
        lines = parts[index].split("\n")
        parts[index] = "\n".join(
            line if line.startswith(("#", ":")) else re.sub(rf"(?<!\[)`({ids})`(?!\])", r"[`\1`](#\1)", line)
            for line in lines
        )
    return "".join(parts)


def _to_function(match: re.Match[str]) -> str:
    """A link to a source file, as a link to the page of the object, or of the module, that its text names.

    What is private has no page: the link leads to its owner.
    """
    text, module = match[1], match[2].replace("/", ".")
    owner = importlib.import_module(module)
    name = text.rpartition(f"{module.rpartition('.')[2]}.")[2].partition("._")[0]
    first = name.partition(".")[0]
    return f"{{py:obj}}`{text} <{f'{module}.{name}' if hasattr(owner, first) else module}>`"


def link_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """A picture as wide as the column: Sphinx then makes it a link to the picture at its own size."""
    for picture in doctree.findall(nodes.image):
        picture["width"] = "100%"


# ------------------------------------------------------------------------------------------------ the claims


def ledger_page(report: dict[str, Any]) -> str:
    """The claims as Markdown: a table of all, then each with its conditions, ratio and witness.

    Raises ``ExtensionError`` where a claim does not hold: there is no site with it.
    """
    failed = [f"{row['id']}: {row['error'] or row['witness']}" for row in report["claims"] if not row["ok"]]
    if failed:
        raise ExtensionError("claims that do not hold: " + "; ".join(failed))
    lines = ["| claim | derived by | examples | tightest ratio |", "|---|---|---|---|"]
    for row in report["claims"]:
        cells = (f"[`{row['id']}`](#claim-{row['id']})", _identities(row), str(row["examples"]), _ratio(row))
        lines.append("| " + " | ".join(cells) + " |")
    section = None
    for row in report["claims"]:
        if row["notebook"] != section:
            section = row["notebook"]
            lines += ["", f"## {_title(NOTEBOOKS / section)}"]
        lines += ["", f"(claim-{row['id']})=", f"### `{row['id']}`", "", plain(row["statement"]), ""]
        lines += [f":Holds for: {plain(row['conditions'])}"]
        lines += [f":Derived in: {{ref}}`{row['id']}`, {{prf:ref}}`theorem-{row['id']}`, by {_identities(row)}"]
        lines += [f":Checked on: {row['examples']} random examples, no violation"]
        if row["tightest"] is not None:
            lines += [f":Tightest ratio: {_ratio(row)} (of {row['measured']} that have one; 1 is equality)"]
        if row["witness"] is not None:
            lines += [f":Without the condition: {plain(row['witness'])}"]
        lines += [f":Code: {{py:obj}}`{row['code'].removeprefix('refimpl.')} <{documented(row['code'])}>`"]
        lines += [f":Run it: `refimpl verify --claim {row['id']}`"]
    count = f"{len(report['claims'])} claims, {report['examples']} random examples each, seed {report['seed']}."
    return "\n".join([count, "", *lines, ""])


def _identities(row: dict[str, Any]) -> str:
    return f"{row['identities']} {'identity' if row['identities'] == 1 else 'identities'}"


def _ratio(row: dict[str, Any]) -> str:
    return "" if row["tightest"] is None else f"{row['tightest']:.9g}"


def _title(page: Path) -> str:
    return re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[1]


def plain(text: str) -> str:
    """Text in which no character is Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", " ".join(text.split()))


# ------------------------------------------------------------------------------------------------ the API


def docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """A docstring of this package, plain text with Unicode mathematics, as reStructuredText; then its equations."""
    text = "" if "\n".join(lines).startswith("Alias for field number") else inspect.cleandoc("\n".join(lines))
    lines[:] = _restructured(text)
    # autodoc asks for no docstring of a dataclass's field: the class answers for it
    fields = {f"{name}.{field}" for field in getattr(obj, "__dataclass_fields__", ())}
    claims = {label(claim.id): claim.id for claim in all_claims().values()}
    for equation, function in equations().items():
        if function == name or function in fields:
            own = "" if function == name else f"``{function.rpartition('.')[2]}``, "
            where = f":ref:`{claims[equation]}`, " if equation in claims else ""
            lines += ["", f":Derived in: {own}{where}equation :eq:`{equation}`", ""]


_ENTRY = re.compile(r"(\w+(?:, \w+)*) : (.*)")


def _restructured(text: str) -> list[str]:
    """Paragraphs; entries ``name : text`` become a definition list, and indented lines keep their line breaks."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if len(lines) > 1 and set(lines[1]) == {"-"}:  # a heading such as Parameters
            out += [f".. rubric:: {lines[0]}", ""]
            lines = lines[2:]
        if not lines:
            continue
        if lines[0].startswith("=="):  # a table is reStructuredText already
            out += lines
        elif _ENTRY.match(lines[0]):
            for line in lines:
                entry = _ENTRY.match(line)
                out += [f"``{entry[1]}``", f"    {_escaped(entry[2])}"] if entry else [f"    {_escaped(line.strip())}"]
        elif lines[0].startswith(" "):
            out += [f"    | {_escaped(line.strip())}" for line in lines]
        elif lines[0].startswith("* "):
            out += [f"* {_escaped(line[2:])}" if line.startswith("* ") else _escaped(line) for line in lines]
        else:
            out += [_escaped(line.strip()) for line in lines]
        out.append("")
    return out


def _escaped(line: str) -> str:
    """No ``*``, ``|`` or final ``_`` is markup, outside literals and roles; a notebook's path is a link to it."""
    line = re.sub(r"``derivations/(\w+)\.md``", r":doc:`/derivations/\1`", line)
    parts = re.split(r"(``.*?``|:[\w:]+:`[^`]*`|\*[A-Z][\w ]+\*)", line)  # the last: a title in italics
    return "".join(
        part if index % 2 else re.sub(r"[\\*|`]|_(?!\w)", r"\\\g<0>", part) for index, part in enumerate(parts)
    )


def resolve(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """References that Sphinx cannot resolve by itself.

    ``refimpl.AttentionEnergy``, as a user imports it, is on the page of the module that defines it. A type in a
    signature, or a module, that exists and has no page is text. Anything else stays an error.
    """
    if node.get("refdomain") != "py":
        return None
    target, module = node["reftarget"], node.get("py:module")
    name = documented(target) if target.startswith("refimpl.") and exists(target) else target
    if name != target:
        return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)
    if node["reftype"] in ("class", "mod") and (exists(target) or (module and mentions(module, target))):
        return contnode
    return None


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    try:
        documented(name)
    except (AttributeError, ValueError):
        return False
    return True


def mentions(module: str, name: str) -> bool:
    """Whether a module has a name, or imports it for its annotations only."""
    owner, first = importlib.import_module(module), name.partition(".")[0]
    imported = re.compile(rf"^ +(from|import)\b.*\b{re.escape(first)}\b", re.MULTILINE)
    return hasattr(owner, first) or bool(imported.search(inspect.getsource(owner)))


# ------------------------------------------------------------------------------------------------ the end


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Add MathJax and the executed notebooks; refuse a page that would load anything from elsewhere."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    copy_mathjax(out / "_static" / "mathjax")
    if app.config.nb_execution_mode != "off":
        for notebook in NOTEBOOKS.glob("*.md"):
            executed = out.parent / "jupyter_execute" / "derivations" / f"{notebook.stem}.ipynb"
            write_executed(notebook, executed, out / "derivations" / executed.name)
    loaded = [f"{page.relative_to(out)}: {url}" for page in out.rglob("*.html") for url in external(page.read_text())]
    loaded += [f"{css.relative_to(out)}: {url}" for css in out.rglob("*.css") for url in external_css(css.read_text())]
    if loaded:
        raise ExtensionError("loaded from elsewhere: " + "; ".join(loaded))


def copy_mathjax(target: Path) -> None:
    """The part of MathJax 3 that its TeX input and HTML output, its menu and its screen-reader support can ask for."""
    package = importlib.import_module("mathjax")
    source = Path(package.__file__).parent / "static" / "mathjax"
    for folder in ("a11y", "input", "output/chtml", "sre", "ui"):
        shutil.copytree(source / "es5" / folder, target / folder, dirs_exist_ok=True)
    for file in (source / "es5" / "tex-chtml.js", source / "LICENSE"):
        shutil.copy(file, target)


def write_executed(notebook: Path, executed: Path, target: Path) -> None:
    """The notebook as it is in the repository, with the outputs of its execution for the site."""
    import jupytext
    import nbformat

    original, site = jupytext.read(notebook), nbformat.read(executed, as_version=4)
    ours, theirs = ([cell for cell in book.cells if cell.cell_type == "code"] for book in (original, site))
    for cell, run in zip(ours, theirs, strict=True):
        if cell.source.strip() != run.source.strip():
            raise ExtensionError(f"{notebook.name}: the cell that was executed is another one: {run.source[:60]!r}")
        cell.outputs, cell.execution_count = run.outputs, run.execution_count
    nbformat.write(original, target)


_LOADING = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*>", re.IGNORECASE)


def external(html: str) -> list[str]:
    """What a page loads from another host: scripts, pictures, fonts, styles. A link that a reader follows is none."""
    tags = _LOADING.findall(html)
    tags = [tag for tag in tags if not re.search(r"rel=[\"']?(?:canonical|index|search|next|prev|author)", tag)]
    return [url for tag in tags for url in re.findall(r"(?:src|href|data)=[\"']?((?:https?:)?//[^\"' >]+)", tag)]


def external_css(css: str) -> list[str]:
    """What a style sheet loads from another host."""
    return re.findall(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", css)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("ledger_examples", 100, "env")
    app.connect("config-inited", copy_notebooks)
    app.connect("source-read", rewrite)
    app.connect("doctree-read", link_pictures)
    app.connect("autodoc-process-docstring", docstring)
    TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # a type alias inside a union, by its name
    app.connect("missing-reference", resolve)
    app.connect("build-finished", finish)
    return {"version": "1"}
