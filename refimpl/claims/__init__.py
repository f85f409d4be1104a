"""The ledger: one entry a claim of the text, one file a section; ``derived`` is what the notebooks call.

``verify`` executes the derivations and checks every claim. The entries themselves (``refimpl.claims.ledger``,
``refimpl.claims.attention``, …) bring Hypothesis and are imported when they are first needed.
"""

from .derive import DerivationError, derived
from .verify import all_claims, verify

__all__ = ["DerivationError", "all_claims", "derived", "verify"]
