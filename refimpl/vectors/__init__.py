"""Published test vectors: inputs and 40-digit results as JSON, for implementations in any language.

``write(DIR)`` writes them, ``check(DIR, RESULTS)`` compares the results of another program with them. The format is in
``docs/vectors.md`` and, as a JSON schema, in ``vectors.schema.json``, which is written beside the vectors.
"""

from .check import check
from .write import write

__all__ = ["check", "write"]
