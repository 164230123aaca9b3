"""How operators are derived from what an engine provides."""
