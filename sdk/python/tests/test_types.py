"""The package's types hold in strict use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_users_code_passes_mypy_in_strict_mode() -> None:
    pytest.importorskip("mypy")
    sample = Path(__file__).parent / "typed_use.py"
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", str(sample)], capture_output=True, text=True, cwd=sample.parent)
    assert checked.returncode == 0, checked.stdout + checked.stderr
