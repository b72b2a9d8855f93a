"""Exports a small translator until somebody ends it: `python export_again_and_again.py BASE`."""

import sys

from keras_transformer.serving.saved_model import export
from tests.support.stand_in_translator import StandIn

translator = StandIn()
print("ready", flush=True)
while True:
    export(translator, sys.argv[1])
    print("published", flush=True)
