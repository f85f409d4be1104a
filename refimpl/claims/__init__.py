"""The ledger: one entry a claim of the text, one file a section; ``derived`` is what the notebooks call."""

from .derive import DerivationError, derived

__all__ = ["DerivationError", "derived"]
