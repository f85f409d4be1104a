"""The command line, ``refimpl`` and ``python -m refimpl``.

Exit status: 0 holds, 1 refuted or failed, 2 bad input, which is one line on standard error, 130 interrupted. With
``--json`` standard output is one JSON object and nothing else; a number that is not finite is null there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from . import __version__, cli_check, cli_figures, cli_gradient_field, cli_rho, cli_train, cli_vectors, console
from .cli_rho import at_least

Report = dict[str, Any]


class Command(NamedTuple):
    """A subcommand: its help, its arguments, its work (exit status and report), the report as text."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], tuple[int, Report]]
    show: Callable[[Report], str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without ρ is no reason to stop
    # Hypothesis keeps what it learns of a program; not in the folder where somebody runs a command
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "refimpl-hypothesis"))
    status = 0
    try:
        status, output = _run(argv)
        print(output, end="", flush=True)
    except BrokenPipeError:
        # the reader has gone; what is still in the buffer goes nowhere, or Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as interrupt:
        return _complain(": ".join(["interrupted", *map(str, interrupt.args)]), 130)
    except OSError as error:
        return _complain(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", 2)
    except ValueError as error:
        return _complain(f"error: {error}", 2)
    return status


def _run(argv: Sequence[str] | None) -> tuple[int, str]:
    parser = _parser()
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in ("rho", "activation", "check", "gradient-field"):
        # a formula such as -exp(-z) is no option: argparse lets spaces pass
        argv = [
            f" {word}" if word[:1] == "-" and word[1:2] not in ("", "-") and word != "-h" else word for word in argv
        ]
    try:
        arguments = parser.parse_args(argv)
    except SystemExit:  # --help and --version
        return 0, ""
    name = " ".join(filter(None, (arguments.command, getattr(arguments, "part", None))))
    if name not in COMMANDS:
        parser.print_help()
        raise ValueError(f"a command is needed: {', '.join(known for known in COMMANDS if known.startswith(name))}")
    command = COMMANDS[name]
    status, report = command.run(arguments)
    if status == 2:  # read, and found to be invalid: said on standard error as every status 2 is
        _complain(f"invalid: {report['reason']}", status)
    text = json.dumps(_strict(report), allow_nan=False) if arguments.json else command.show(report)
    return status, f"{text}\n"


def _complain(message: str, status: int) -> int:
    print("refimpl:", " ".join(message.split()), file=sys.stderr)
    return status


def _strict(value: Any) -> Any:
    """``value`` with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------ arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="refimpl", description="Transformers as descent on an energy: check the claims, run the experiments."
    )
    parser.add_argument("--version", action="version", version=f"refimpl {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    groups: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        first, _, part = name.partition(" ")
        if part and first not in groups:
            group = subparsers.add_parser(first, help=f"{first}: see refimpl {first} --help")
            groups[first] = group.add_subparsers(dest="part", metavar="COMMAND")
        adder = groups[first] if part else subparsers
        subparser = adder.add_parser(part or name, help=command.help, description=command.help, allow_abbrev=False)
        command.arguments(subparser)
        subparser.add_argument("--seed", type=at_least(0), default=0, metavar="S", help="of the random draws")
        subparser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


# ------------------------------------------------------------------------------------------------ refimpl verify


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--claim", action="append", metavar="ID", help="check this claim only; may be repeated")
    parser.add_argument("--examples", type=at_least(1), default=200, metavar="N", help="random examples a claim")


def _verify(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import claims

    with console.progress() as progress:
        report = claims.verify(arguments.claim, arguments.examples, arguments.seed, progress)
    return 0 if report["ok"] else 1, report


def _show_verify(report: Report) -> str:
    claims = report["claims"]
    failed = [claim for claim in claims if claim["error"] or claim["violations"] or claim["derivation"] != "proved"]
    rows = [
        [
            claim["id"],
            claim["statement"],
            f"proved ({claim['identities']})" if claim["derivation"] == "proved" else claim["derivation"].upper(),
            f"{claim['examples']:,}",
            f"{claim['violations']:,}",
            "-" if claim["tightest"] is None else f"{claim['tightest']:.6g}",
            "FAILED" if claim in failed else "holds",
        ]
        for claim in claims
    ]
    header = ["claim", "statement", "derivation", "examples", "violations", "tightest", "result"]
    lines = [console.table(header, rows, wrap=1), ""]
    lines += [f"witness  {claim['id']}: {claim['witness']}" for claim in claims if claim["witness"]]
    lines += [f"FAILED   {claim['id']}: {_reason(claim)}" for claim in failed]
    derived = sum(claim["derivation"] == "proved" for claim in claims)
    lines.append(
        f"{_count(len(claims), 'claim')}: {derived:,} derived, "
        f"{_count(sum(claim['examples'] for claim in claims), 'example')}, "
        f"{_count(sum(claim['violations'] for claim in claims), 'violation')} in {report['seconds']:.0f} s"
        + ("" if report["ok"] else f": FAILED ({len(failed)})")
    )
    return "\n".join(lines)


def _reason(claim: Report) -> str:
    reasons = [
        claim["error"],
        "the derivation is missing" if claim["derivation"] != "proved" else None,
        f"{_count(claim['violations'], 'violation')}" if claim["violations"] else None,
    ]
    return "; ".join(reason for reason in reasons if reason)


# ------------------------------------------------------------------------------------------------ refimpl curve


def _curve_arguments(parser: argparse.ArgumentParser) -> None:
    from . import datasets

    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--sentences", type=Path, metavar="F", help="a .tsv file with a header row")
    source.add_argument("--dataset", choices=datasets.NAMES, help="a corpus that refimpl[data] installs")
    vectors = (
        "word vectors, .npz or GloVe .txt; glove: those that refimpl[data] installs, as --dataset takes by default"
    )
    parser.add_argument("--embeddings", metavar="F", help=vectors)
    parser.add_argument("--layers", type=at_least(1), default=12, metavar="L", help="number of layers (12)")
    parser.add_argument("--samples", type=at_least(1), metavar="N", help="a random subset of N sentences")
    parser.add_argument("--max-words", type=at_least(1), metavar="N", help="cut a sentence after N words")
    parser.add_argument("--rho", default="exp", metavar="R", help="the penalty: a name or a formula in z (exp)")
    parser.add_argument("--no-relu", action="store_true", help="the identity instead of ReLU")
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="processes, -1 for all cores (1)")
    parser.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler whose workers take the documents")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="draw the curve: .png, .svg or .pdf")


def _jobs(text: str) -> int:
    return -1 if text == "-1" else at_least(1)(text)


@contextlib.contextmanager
def _workers(address: str | None) -> Iterator[None]:
    """joblib's Dask backend, where a scheduler is named."""
    if address is None:
        yield
        return
    try:
        import joblib
        from dask.distributed import Client
    except ImportError:
        raise ValueError("dask: it is needed, run: pip install 'refimpl[parallel]' 'dask[distributed]'") from None
    client: Any = Client
    with client(address, timeout=10), joblib.parallel_config("dask"):
        yield


def _curve(arguments: argparse.Namespace) -> tuple[int, Report]:
    from . import curve, datasets, text
    from .attention import AttentionEnergy

    if arguments.plot is not None:
        curve.check_plot(arguments.plot)
    rho = AttentionEnergy(rho=arguments.rho).rho  # refused before any file is read
    vectors = arguments.embeddings or (arguments.dataset and "glove")
    if not vectors:
        raise ValueError("embeddings: --sentences needs --embeddings F, a file of word vectors, or --embeddings glove")
    documents = datasets.load(arguments.dataset) if arguments.dataset else text.read_documents(arguments.sentences)
    words = text.candidates(documents.texts)
    embeddings = datasets.read_glove(words) if vectors == "glove" else text.read_embeddings(vectors, words)
    with console.progress() as progress, _workers(arguments.dask):
        result = curve.energy_curve(
            documents.texts,
            embeddings,
            layers=arguments.layers,
            rho=rho,
            relu=not arguments.no_relu,
            seed=arguments.seed,
            samples=arguments.samples,
            max_words=arguments.max_words,
            jobs=arguments.jobs if arguments.dask is None else -1,
            progress=progress,
        )
    if arguments.plot is not None:
        curve.plot(result, arguments.plot)
    # a rise refutes nothing: the alternation descends where a certificate holds
    return 0, result.as_dict() | {"plot": None if arguments.plot is None else str(arguments.plot)}


def _show_curve(report: Report) -> str:
    columns = [report["mean_energy"], report["minimum"], *report["quartiles"], report["maximum"]]
    rows = [[str(layer), *(f"{x:.4f}" for x in numbers)] for layer, numbers in enumerate(zip(*columns, strict=True))]
    header = ["layer", "mean energy", "minimum", "25 %", "median", "75 %", "maximum"]
    relu = "ReLU" if report["relu"] else "no ReLU"
    lines = [
        f"{_count(report['samples'], 'sentence')}, {_count(report['layers'], 'layer')}, rho = {report['rho']}, {relu}, "
        f"tokens start at {report['start']} for word vectors x",
        "",
        console.table(header, rows),
        "",
        f"{_count(report['words'], 'word')} with a vector, {report['unknown_words']:,} without (skipped)"
        + (f"; sentences cut after {_count(report['max_words'], 'word')}" if report["max_words"] else ""),
    ]
    if empty := report["empty_sentences"]:
        shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        lines.append(f"{_count(len(empty), 'sentence')} without any word, not averaged; index from 0: {shown}")
    falling = round(report["monotone_fraction"] * report["samples"])
    lines.append(f"the energy falls at every layer for {falling:,} of {_count(report['samples'], 'sentence')}")
    if rise := report["increase"]:
        lines.append(
            f"first rise: layer {rise['layer']}, by {rise['amount']:.6g} in sentence {rise['sentence']} "
            f"(rounding explains {rise['rounding']:.1g})"
        )
    if report["plot"]:
        lines.append(f"plot: {report['plot']}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


COMMANDS = {
    "verify": Command("derive and attack every claim", _verify_arguments, _verify, _show_verify),
    "curve": Command("the energy of real sentences, layer by layer", _curve_arguments, _curve, _show_curve),
    "figures": Command(
        "the paper's figures, with their numbers",
        cli_figures.figures_arguments,
        cli_figures.figures,
        cli_figures.show_figures,
    ),
    "train": Command(
        "train the unfolded Transformer on labelled sentences",
        cli_train.train_arguments,
        cli_train.train,
        cli_train.show_train,
    ),
    "rho check": Command(
        "what is proved of a penalty, and whether its attention descends",
        cli_rho.rho_check_arguments,
        cli_rho.rho_check,
        cli_rho.show_rho_check,
    ),
    "rho list": Command("the shipped penalties", cli_rho.no_arguments, cli_rho.rho_list, cli_rho.show_rho_list),
    "rho plot": Command(
        "penalties, kernels, attention and energies side by side",
        cli_rho.rho_plot_arguments,
        cli_rho.rho_plot,
        cli_rho.show_rho_plot,
    ),
    "activation check": Command(
        "whether an activation is a proximal operator, of what, and whether its step descends",
        cli_rho.activation_check_arguments,
        cli_rho.activation_check,
        cli_rho.show_activation_check,
    ),
    "activation list": Command(
        "the shipped activations",
        cli_rho.no_arguments,
        cli_rho.activation_list,
        cli_rho.show_activation_list,
    ),
    **{
        f"check {kind}": Command(
            f"whether a function is the {what} of the paper, and what it is if not",
            cli_check.check_arguments(kind),
            cli_check.check(kind),
            cli_check.show_check,
        )
        for kind, what in cli_check.WHAT.items()
    },
    "gradient-field": Command(
        "whether an update is a gradient step, and in which metric",
        cli_gradient_field.gradient_field_arguments,
        cli_gradient_field.gradient_field,
        cli_gradient_field.show_gradient_field,
    ),
    "vectors write": Command(
        "test vectors for implementations in any language",
        cli_vectors.write_arguments,
        cli_vectors.write,
        cli_vectors.show_write,
    ),
    "vectors check": Command(
        "the results of another program against the vectors",
        cli_vectors.check_arguments,
        cli_vectors.check,
        cli_vectors.show_check,
    ),
}
