"""JAX compiles each case twice (unprepared, prepared): a cache on disk saves one of them, and more."""

from __future__ import annotations

import os
import tempfile

# Before JAX is imported. Most of the suite's time is XLA optimising functions that run three times.
_FOLDER = tempfile.TemporaryDirectory(prefix="diface-xla-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _FOLDER.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
