"""The package does not need transformers until its integration is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import moesaic

PROGRAM = """
import sys
import moesaic, moesaic.integrations
assert "transformers" not in sys.modules
import moesaic.integrations.transformers
assert "transformers" in sys.modules
"""


def test_transformers_is_imported_late():
    environment = {**os.environ, "PYTHONPATH": str(Path(moesaic.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)  # noqa: S603
