"""Transformers as descent on an energy: a reference implementation with derivation checks.

The mathematics is that of Y. Yang, Z. Huang, D. Wipf, *Transformers from an Optimization Perspective*, NeurIPS 2022.
Start with ``refimpl/definitions.py``, then the energies; ``derivations/`` derives every formula.
"""

__version__ = "0.1.0"

from . import asymmetric, certificates
from .activation import ACTIVATIONS, Activation, get_activation
from .attention import AttentionEnergy
from .feedforward import FeedForwardEnergy
from .residual import ResidualAttentionEnergy
from .rho import PENALTIES, Rho, get_rho
from .transformer import Trajectory, UnfoldedTransformer

__all__ = [
    "ACTIVATIONS",
    "PENALTIES",
    "Activation",
    "AttentionEnergy",
    "FeedForwardEnergy",
    "ResidualAttentionEnergy",
    "Rho",
    "Trajectory",
    "UnfoldedTransformer",
    "asymmetric",
    "certificates",
    "get_activation",
    "get_rho",
]


def __getattr__(name: str) -> object:
    # refimpl.testing brings Hypothesis: it is imported when first asked for
    if name == "testing":
        import importlib

        return importlib.import_module(".testing", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
