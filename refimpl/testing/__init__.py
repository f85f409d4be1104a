"""What users run on their own code: strategies, the check kits, the search for a rise of the energy."""

from .conformance import Conformance, NonConformance, check_attention, check_feedforward, check_layer
from .gradient_field import GradientField, check_gradient_field
from .kit import (
    Check,
    CheckFailure,
    activation_checks,
    check_activation,
    check_rho,
    parametrize_with_checks,
    penalty_checks,
    results,
)
from .search import search_descent

__all__ = [
    "Check",
    "CheckFailure",
    "Conformance",
    "GradientField",
    "NonConformance",
    "activation_checks",
    "check_activation",
    "check_attention",
    "check_feedforward",
    "check_gradient_field",
    "check_layer",
    "check_rho",
    "parametrize_with_checks",
    "penalty_checks",
    "results",
    "search_descent",
]
