"""Makes what every later version has to read: `python -m tests.support.make_fixture`.

A run of a minute-old training and its export, as small as can be, of the format that this version
writes. Committed once for each format, and never made again.
"""

import json
import shutil
import sys
import tempfile

import keras_transformer
from keras_transformer.cli.main import run
from keras_transformer.presets.options import FORMAT
from tests.support.paths import FIXTURES
from tests.support.toy_translator import SOURCES, toy_pairs

SIZES = "--num-layers 1 --d-model 8 --num-heads 2 --d-ff 16 --max-length 12 --dropout 0".split()


def main():
    folder = FIXTURES / f"format-{FORMAT}"
    if folder.exists():
        sys.exit(f"{folder} is there already: it stays as it is.")
    with tempfile.TemporaryDirectory() as temporary:
        pairs = f"{temporary}/pairs.tsv"
        with open(pairs, "w", encoding="utf-8") as file:
            file.writelines(f"{source}\t{target}\n" for source, target in toy_pairs(500))
        train = ["train", "--preset", "tiny", *SIZES, "--output", f"{temporary}/run"]
        train += ["--train-source", pairs, "--valid-source", pairs, "--vocabulary-size", "None"]
        train += ["--model-type", "char", "--epochs", "2", "--steps-per-epoch", "100"]
        train += ["--learning-rate", "0.02", "--warmup-steps", "20", "--tokens-per-batch", "512"]
        run(train)
        run(["export", f"{temporary}/run", f"{temporary}/export", "--signatures"])
        for name in ("model.keras", "source.spm", "target.spm", "config.yaml", "data.json"):
            (folder / "run").mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{temporary}/run/{name}", folder / "run")
        shutil.copytree(f"{temporary}/export", folder / "export")
    translations = keras_transformer.load(folder / "run").translate(SOURCES)
    (folder / "translations.json").write_text(
        json.dumps(dict(zip(SOURCES, translations, strict=True)))
    )
    print(folder)


if __name__ == "__main__":
    main()
