"""From a translator to the directory that TF Serving loads, and back; other engines' formats."""
