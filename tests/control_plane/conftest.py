"""Makes the helpers of these tests and of the engines' importable (import-mode importlib adds no path)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "data_plane" / "generation")]
