"""What users run on their own code: Hypothesis strategies, the check kit, the search for a rise of the energy."""

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
    "activation_checks",
    "check_activation",
    "check_rho",
    "parametrize_with_checks",
    "penalty_checks",
    "results",
    "search_descent",
]
