"""The linter finds nothing in the project."""

import subprocess
import sys
from pathlib import Path


def test_ruff():
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
