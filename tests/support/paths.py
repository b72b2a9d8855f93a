"""Where things are in the repository."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
EXPORT = ROOT / "export"
SUPPORT = ROOT / "tests" / "support"
FIXTURES = ROOT / "tests" / "fixtures"
