"""Times a model of NLLB-600M's sizes, with random weights.

    python -m benchmarks.languages [--folder FOLDER] [--rounds 3]

transformers writes the model, and it is imported, exported and converted once; then all systems
translate one text as often as there are rows, from text to text, 24 tokens of each. Needs the extra
`parity`, 24 GB of memory and 12 GB of disk; few systems are in memory at the same time.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

from benchmarks.report import table
from benchmarks.side_by_side import System, time_systems
from benchmarks.worker import largest_memory

SIZES = dict(d_model=1024, vocab_size=256_206, max_position_embeddings=1024, scale_embedding=True)
SIDES = dict(layers=12, attention_heads=16, ffn_dim=4096)
PIECES, CODES, STEPS = 256_000, ("eng_Latn", "deu_Latn"), 24
TEXT = " ".join(f"w{number}" for number in range(1000, 1000 + STEPS - 2))  # with language and END
COMMAND = {"TF_ENABLE_ONEDNN_OPTS": "1"}
EXPORTS = {  # by the dtypes of the computation and of the weights
    "float32": ("float32", "float32"),
    "bfloat16 weights": ("float32", "bfloat16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "int8 weights": ("float32", "int8"),
}


def write_model(folder):
    """Writes a model as transformers does: in several files."""
    import torch
    from sentencepiece import sentencepiece_model_pb2
    from transformers import M2M100Config, M2M100ForConditionalGeneration
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    torch.manual_seed(1)
    sides = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDES.items()
    }
    model = M2M100ForConditionalGeneration(M2M100Config(**SIZES, **sides))
    model.save_pretrained(folder, max_shard_size="1GB")
    pieces = sentencepiece_model_pb2.ModelProto()
    kind = pieces.SentencePiece
    for piece, type in (("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)):
        pieces.pieces.add(piece=piece, type=type)
    for number in range(3, PIECES):
        pieces.pieces.add(piece=f"▁w{number}", score=-1e-5 * number)
    pieces.trainer_spec.model_type = pieces.trainer_spec.UNIGRAM
    pieces.trainer_spec.vocab_size = PIECES
    pieces.normalizer_spec.name = "identity"
    for name, text in {
        "tokenizer_config.json": json.dumps({"tokenizer_class": "NllbTokenizer"}),
        "special_tokens_map.json": json.dumps(
            {"additional_special_tokens": FAIRSEQ_LANGUAGE_CODES}
        ),
    }.items():
        (folder / name).write_text(text)
    (folder / "sentencepiece.bpe.model").write_bytes(pieces.SerializeToString())


def write_run(folder):
    """Imports the model; prints how long that took, and the most memory that it needed."""
    # A plain installation has none; with it, Keras writes to memory first where there is enough.
    sys.modules["psutil"] = None
    import keras_transformer as kt

    started = time.perf_counter()
    kt.import_model(folder / "model", folder / "run")
    seconds = time.perf_counter() - started
    print(f"imported in {seconds:.0f} s with at most {largest_memory() / 1024:.2f} GiB")


def load(folder):
    """Our translator, which never ends a translation early."""
    import keras_transformer as kt

    translator = kt.load(folder / "run", "float32")
    suppressed = translator.model.suppressed.numpy()
    suppressed[kt.END] = -1000
    translator.model.suppressed.assign(suppressed)
    return translator


def write_export(folder, name):
    """Writes one of our exports, or CTranslate2's model; prints the most memory that it needed."""
    import keras_transformer as kt
    from keras_transformer.tools.ctranslate2 import export_ctranslate2

    translator = load(folder)
    if name in EXPORTS:
        computation, precision = EXPORTS[name]
        how = dict(computation=computation, precision=precision, beam_size=4)
        config = kt.ExportConfig(signatures=("beam",), max_output_length=STEPS, **how)
        kt.export(translator, folder / name, config=config)
    else:
        export_ctranslate2(translator, folder / name)
    print(f"{name}: written with at most {largest_memory() / 1024:.2f} GiB", flush=True)


def in_memory(folder, rows, beam_size):
    """`Translator.translate`, as the command does it."""
    import keras_transformer as kt

    kt.configure_threads()
    translator = load(pathlib.Path(folder))
    search = kt.SearchConfig(beam_size=beam_size, max_output_length=STEPS)
    languages = dict(zip(("source_language", "target_language"), CODES, strict=True))
    return lambda: _check(translator.translate([TEXT] * rows, search=search, **languages), rows)


def exported(folder, name, rows, beam_size):
    """The SavedModel as a server runs it, XLA off, in a process whose memory does not count."""
    from keras_transformer.serving.server_process import ServerProcess
    from keras_transformer.serving.versions import version_dir

    server = ServerProcess(version_dir(os.path.join(folder, name)))
    signature = "serving_default" if beam_size == 1 else "beam"

    def translate():
        found = server.predict(_inputs(rows), signature)["text"]
        _check(found, rows)

    return translate


def ctranslate2(folder, compute_type, rows, beam_size):
    """CTranslate2 on all cores, text to text."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(f"{folder}/model/sentencepiece.bpe.model")
    options = dict(compute_type=compute_type, intra_threads=os.cpu_count())
    engine = ctranslate2.Translator(os.path.join(folder, "ctranslate2"), **options)
    lengths = dict(min_decoding_length=STEPS + 1, max_decoding_length=STEPS + 1)

    def translate():
        pieces = [[CODES[0], *row] for row in processor.encode([TEXT] * rows, out_type=str)]
        prefix = [[CODES[1]]] * rows
        found = engine.translate_batch(pieces, target_prefix=prefix, beam_size=beam_size, **lengths)
        _check([processor.decode(result.hypotheses[0][1:]) for result in found], rows)

    return translate


def transformers(folder, rows, beam_size):
    """`generate` in PyTorch, text to text."""
    import sentencepiece
    import torch
    from transformers import M2M100ForConditionalGeneration

    torch.set_num_threads(os.cpu_count())
    model = M2M100ForConditionalGeneration.from_pretrained(f"{folder}/model").eval()
    processor = sentencepiece.SentencePieceProcessor(f"{folder}/model/sentencepiece.bpe.model")
    first = [PIECES + 1, PIECES + 2]  # two languages; pieces follow <s>, <pad>, </s>, <unk>
    options = dict(num_beams=beam_size, do_sample=False, forced_bos_token_id=first[1])
    options |= dict(min_new_tokens=STEPS + 1, max_new_tokens=STEPS + 1)

    def translate():
        ids = [[first[0], *(i + 1 for i in row), 2] for row in processor.encode([TEXT] * rows)]
        ids = torch.tensor(ids)
        with torch.no_grad():
            found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        rest = found[:, 2:].clamp(4, PIECES) - 1  # the last may be forced to be END
        _check(processor.decode(rest.tolist()), rows)

    return translate


def _check(texts, rows):
    """Random weights write no words, only as many tokens as they must."""
    if len(texts) != rows:
        raise RuntimeError(f"Expected {rows} texts, received {len(texts)}.")


def groups(folder, rows, beam_size):
    """Lists of systems that fit into memory together; CTranslate2 float32 is in each."""
    work = {"folder": os.fspath(folder), "rows": rows, "beam_size": beam_size}
    float32, int8 = (
        System(f"CTranslate2 {kind}", "languages", "ctranslate2", work | {"compute_type": kind})
        for kind in ("float32", "int8")
    )
    ours = System("ours in memory", "languages", "in_memory", work, environment=COMMAND)
    yield [float32, int8, ours]
    for name in EXPORTS:
        yield [float32, System(f"exported, {name}", "languages", "exported", work | {"name": name})]
    yield [float32, System("transformers", "languages", "transformers", work)]


def prepare(folder):
    """Writes what is missing in the folder; prints what importing took."""
    if not (folder / "model").exists():
        write_model(folder / "model")
    if not (folder / "run").exists():
        _call("write_run", folder)
    for name in (*EXPORTS, "ctranslate2"):
        if not (folder / name).exists():
            _call("write_export", folder, name)
    for name in ("run", *EXPORTS, "ctranslate2"):
        files = [file for file in (folder / name).rglob("*") if file.is_file()]
        print(f"{name}: {sum(file.stat().st_size for file in files) / 1e9:.2f} GB on disk")


def write_memory(folder):
    """Prints what memory a server has with an export: loaded, and after two requests."""
    from keras_transformer.serving.server_process import ServerProcess
    from keras_transformer.serving.versions import version_dir

    for name in EXPORTS:
        with ServerProcess(version_dir(folder / name)) as server:
            status = pathlib.Path(f"/proc/{server._process.pid}/status")
            memory = [_resident(status)]
            for rows, signature in ((1, "beam"), (32, "serving_default")):
                server.predict(_inputs(rows), signature)
                memory.append(_resident(status))
        print(f"{name}: {', '.join(f'{size:.1f}' for size in memory)} GiB of a server", flush=True)


def _resident(status):
    """GiB of memory of a process."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 2**20


def _inputs(rows):
    """A request."""
    codes = dict(zip(("source_language", "target_language"), CODES, strict=True))
    return {"text": [TEXT] * rows} | {key: [code] * rows for key, code in codes.items()}


def _call(function, folder, *arguments):
    """Calls a function of this module in a process of its own, which ends with its memory."""
    values = ", ".join([f"pathlib.Path({os.fspath(folder)!r})", *map(repr, arguments)])
    program = f"import pathlib; from benchmarks import languages; languages.{function}({values})"
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, env=os.environ | COMMAND)


def measure(folder, rounds):
    """(title, timings) of each size of batch and beam."""
    for rows in (1, 32):
        for beam_size in (1, 4):
            for systems in groups(folder, rows, beam_size):
                yield f"beam {beam_size}, batch {rows}", time_systems(systems, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default="runs/languages")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder)
    write_memory(options.folder)
    for title, timings in measure(options.folder, options.rounds):
        print(f"\n{title}, {options.rounds} rounds\n\n{table(timings)}", flush=True)


if __name__ == "__main__":
    main()
