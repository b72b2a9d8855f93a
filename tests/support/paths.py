"""Where things are in the repository."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
EXPORT = ROOT / "export"
SUPPORT = ROOT / "tests" / "support"
PATTERN = "models [v2] *? \\ {a,b} [/b]"  # what TensorFlow and rich might not take for a name
FIXTURES = ROOT / "tests" / "fixtures"
