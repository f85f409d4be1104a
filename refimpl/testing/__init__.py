"""What users run on their own code: Hypothesis strategies and, for every claim, the check behind it."""
