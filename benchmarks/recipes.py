"""Recipes for Multi30k at the whole budget, on one GPU: many trainings in minutes.

On two cores one training of the preset `tiny` takes two hours. Here the same model trains on Keras'
JAX backend: variants of one architecture together (`jax.vmap`), architectures in processes beside
each other. Loss, optimizer, schedule, average of the weights and choice of the checkpoint are those
of `train`; batches are padded to three lengths only, so that little has to be compiled.

    python -m benchmarks.recipes prepare DATA      # vocabularies and ids; needs TensorFlow
    python -m benchmarks.recipes run DATA benchmarks/recipes.json OUTPUT SECONDS PROCESSES
    python -m benchmarks.recipes table OUTPUT
    python -m benchmarks.recipes translate DATA OUTPUT  # the stored models, by `Translator`

recipes.json is a list of `{"name", "vocabulary", "model": {...}, "steps", "variants": [...]}`. With
`"data": "6000-sampled"`, texts are segmented with BPE-dropout; those of `"6000-raw"` are cased and
not tokenized. The first `"bidirectional_steps"`, up to the end of a pass, have pairs in both
directions (BiT, arXiv:2109.07780). A variant has `seed` and, if they differ from `PRESET`, the
other options there. The GPU's machine needs JAX, Keras, sentencepiece and sacreBLEU, not
TensorFlow.
"""

import functools
import glob
import gzip
import itertools
import json
import multiprocessing
import os
import sys
import time

import numpy as np

CORPUS = "../shared/data/multi30k"
PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
VOCABULARIES = {"tok": (9900, 6000, 4000, 2000), "raw": (6000,)}
ENDINGS, BLEU_TOKENIZE = {"tok": ".lc.norm.tok", "raw": ""}, {"tok": "none", "raw": "13a"}
SAMPLED = (6000,)  # vocabularies with BPE-dropout
DROPPED, SAMPLES = 0.05, 16  # probability, and passes that are stored
LENGTHS = (16, 24, 72)  # that batches are padded to
TOKENS = 9600  # of a batch, with padding: as many target tokens as with finer buckets
EVERY = 500  # steps between validations
FIRST = 1000  # step of the first validation
BUDGET = 5000  # steps of the preset
LIMIT = 64  # output tokens
BEAMS, ALPHA = 5, 1.4
ALPHAS = (1.4, 0.6)  # of `translate`
PAD, START, END = 0, 2, 3
WARMUP = 1000
PRESET = {"rdrop": 0.0, "learning_rate": 5e-3, "weight_decay": 0.1, "ema": 0.998}
PRESET |= {"label_smoothing": 0.1, "cooldown_steps": 0}
MODEL = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3}
WEIGHTS_KEPT = 12  # models whose weights are stored


def prepare(folder):
    """Learns the vocabularies and stores the ids of all texts."""
    os.makedirs(folder, exist_ok=True)
    for corpus, sizes in VOCABULARIES.items():
        texts = {
            name: [_lines(part, side, corpus) for side in ("en", "de")]
            for name, part in PARTS.items()
        }
        for size in sizes:
            _prepare(folder, corpus, texts, size)


def _prepare(folder, corpus, texts, size):
    import sentencepiece

    from keras_transformer.presets import change, get_preset
    from keras_transformer.runs.training_data import train_tokenizers

    config = change(get_preset("tiny"), {"vocabulary_size": size})
    # The target's, for both sides: NFKC, by which they differ, changes no source of Multi30k.
    _, tokenizer = train_tokenizers(config, list(zip(*texts["train"], strict=True)))
    arrays = {"model": np.frombuffer(tokenizer.model, "uint8"), "passes": 1}
    arrays |= {"corpus": corpus, "bleu_tokenize": BLEU_TOKENIZE[corpus]}
    for name, sides in texts.items():
        for side, lines in zip(("source", "target"), sides, strict=True):
            arrays[f"{name}_{side}"] = _padded(tokenizer(lines).to_list())
        if name != "train":
            arrays[f"{name}_text"] = np.frombuffer("\n".join(sides[1]).encode(), "uint8")
    np.savez_compressed(f"{folder}/{size}{'-raw' * (corpus == 'raw')}.npz", **arrays)
    if corpus == "tok" and size in SAMPLED:
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        for side, lines in zip(("source", "target"), texts["train"], strict=True):
            sampling = dict(enable_sampling=True, alpha=DROPPED)
            arrays[f"train_{side}"] = _padded(processor.encode(list(lines) * SAMPLES, **sampling))
        np.savez_compressed(f"{folder}/{size}-sampled.npz", **arrays | {"passes": SAMPLES})


def _padded(rows):
    """Adds END to lists of ids and pads them: uint16 `(B, T)`."""
    rows = [[*row, END] for row in rows]
    width = max(map(len, rows))
    return np.asarray([[*row, *[PAD] * (width - len(row))] for row in rows], "uint16")


def _lines(part, language, corpus):
    with gzip.open(f"{CORPUS}/{corpus}/{part}{ENDINGS[corpus]}.{language}.gz", "rt") as file:
        return file.read().splitlines()


class Data:
    """The ids of one vocabulary, `name`.npz."""

    def __init__(self, folder, name, bidirectional_steps=0):
        import sentencepiece

        arrays = np.load(f"{folder}/{name}.npz")
        self.passes, self._bleu_tokenize = int(arrays["passes"]), str(arrays["bleu_tokenize"])
        self.bidirectional_steps = bidirectional_steps
        self.ids = {name: arrays[name] for name in arrays.files if name.endswith(("rce", "get"))}
        sides = [self.ids[f"train_{side}"][:, : LENGTHS[-1]] for side in ("source", "target")]
        sides = [np.pad(ids, [(0, 0), (0, LENGTHS[-1] - ids.shape[1])]) for ids in sides]
        self.pairs = len(sides[0])
        if bidirectional_steps:
            sides = [np.concatenate(both) for both in (sides, sides[::-1])]
        for side, ids in zip(("source", "target"), sides, strict=True):
            self.ids[f"train_{side}"] = np.pad(ids, [(0, 1), (0, 0)])  # the last row: no sentence
        self.texts = {
            name: bytes(arrays[f"{name}_text"]).decode().split("\n") for name in ("valid", "test")
        }
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=bytes(arrays["model"]))

    def batches(self, seed):
        """Yields (length, numbers of rows), pass after pass; short batches end with empty rows."""
        rng = np.random.default_rng(seed)
        sides = [self.ids[f"train_{side}"][:-1] for side in ("source", "target")]
        bucket = np.searchsorted(LENGTHS, np.maximum(*((ids != PAD).sum(1) for ids in sides)))
        # Sentences that do not fit, and so have lost their END, are left out.
        last = np.stack([ids[:, -1] for ids in sides])
        bucket[((last != PAD) & (last != END)).any(axis=0)] = len(LENGTHS)
        numbers, steps = np.arange(len(bucket)), 0
        passes = numbers % self.pairs * self.passes // self.pairs
        for pass_number in itertools.count():
            plan = []
            chosen = passes == pass_number % self.passes
            if steps >= self.bidirectional_steps:
                chosen &= numbers < self.pairs
            for number, length in enumerate(LENGTHS):
                rows = rng.permutation(np.flatnonzero(chosen & (bucket == number)))
                size = max(1, min(TOKENS // length, len(rows)))
                rows = np.pad(rows, (0, -len(rows) % size), constant_values=len(bucket))
                plan += [(length, some) for some in rows.reshape(-1, size)]
            steps += len(plan)
            yield from (plan[i] for i in rng.permutation(len(plan)))

    def bleu(self, name, ids):
        """BLEU of generated ids."""
        import sacrebleu

        ends = [list(row).index(END) if END in row else len(row) for row in ids]
        rows = [[int(x) for x in row[:end]] for row, end in zip(ids, ends, strict=True)]
        text, tokenize = self._processor.decode(rows), self._bleu_tokenize
        return sacrebleu.corpus_bleu(text, [self.texts[name]], tokenize=tokenize, force=True).score


def _build(job, dtype="mixed_bfloat16"):
    from keras_transformer.transformer import Transformer

    config = MODEL | {"share_embeddings": "all", "dtype": dtype} | job["model"]
    model = Transformer(job["vocabulary"], job["vocabulary"], **config)
    model.build()
    return model


class Trainer:
    """Trains the variants of one architecture at once: every array has an axis of variants."""

    def __init__(self, job, data):
        import jax
        import keras
        from jax.flatten_util import ravel_pytree

        self.variants = [PRESET | variant for variant in job["variants"]]
        self.data = data
        start = []
        for variant in self.variants:
            keras.utils.set_random_seed(variant["seed"])
            self.model = _build(job)
            start.append([np.asarray(v.value) for v in self.model.trainable_variables])
        _, self.unravel = ravel_pytree(start[0])
        theta = jax.numpy.asarray([ravel_pytree(weights)[0] for weights in start])
        decayed = [
            np.full(v.shape, v.name not in ("bias", "gamma", "beta"), "float32")
            for v in self.model.trainable_variables
        ]
        self.decayed = ravel_pytree(decayed)[0]
        self.parameters = theta.shape[1]
        self.state = {"theta": theta, "m": theta * 0, "v": theta * 0, "ema": theta * 1}
        self.rdrop = any(variant["rdrop"] for variant in self.variants)
        names = [*PRESET, "seed"]
        self.hyper = {n: jax.numpy.asarray([v[n] for v in self.variants]) for n in names}
        self.steps = job["steps"]
        self.ids = {name: jax.numpy.asarray(ids, "int32") for name, ids in data.ids.items()}
        axes = (0, 0, None, None, None)
        self._step = jax.jit(
            lambda state, hyper, step, rows, length: jax.vmap(
                functools.partial(self._update, length=length), in_axes=axes[:4]
            )(state, hyper, step, rows),
            static_argnums=4,
            donate_argnums=0,
        )
        self._decoders = {}

    def step(self, number, length, rows):
        """Makes one step; returns the losses of the variants."""
        self.state, losses = self._step(self.state, self.hyper, number, rows, length)
        return losses

    def _update(self, state, hyper, step, rows, length):
        import jax
        from jax import numpy as jnp

        source, target = (self.ids[f"train_{s}"][rows, :length] for s in ("source", "target"))
        key = jax.random.fold_in(jax.random.key(hyper["seed"]), step)
        loss, gradient = jax.value_and_grad(self._loss)(state["theta"], key, source, target, hyper)
        t = step + 1.0
        share = t / WARMUP
        rate = hyper["learning_rate"] * jnp.minimum(share, jax.lax.rsqrt(share))
        left = (self.steps - step) / jnp.maximum(hyper["cooldown_steps"], 1)
        rate *= jnp.where(hyper["cooldown_steps"] > 0, jnp.minimum(left, 1), 1)
        m = 0.9 * state["m"] + 0.1 * gradient
        v = 0.98 * state["v"] + 0.02 * gradient**2
        corrected = rate * jnp.sqrt(1 - 0.98**t) / (1 - 0.9**t)
        theta = state["theta"] * (1 - rate * hyper["weight_decay"] * self.decayed)
        theta = theta - corrected * m / (jnp.sqrt(v) + 1e-9)
        momentum = jnp.minimum(hyper["ema"], (1.0 + step) / (10.0 + step))
        ema = momentum * state["ema"] + (1 - momentum) * theta
        return {"theta": theta, "m": m, "v": v, "ema": ema}, loss

    def _loss(self, theta, key, source, target, hyper):
        """The mean loss per target token: R-Drop (arXiv:2106.14448, equation 4, halved)."""
        import jax
        from jax import numpy as jnp

        passes = 2 if self.rdrop else 1
        given = jnp.pad(target, [(0, 0), (1, 0)], constant_values=START)[:, :-1]
        inputs = tuple(jnp.tile(x, (passes, 1)) for x in (source, given))
        generators = len(self.model.non_trainable_variables)  # of the dropout
        others = list(jax.random.bits(key, (generators, 2), "uint32"))
        logits, _ = self.model.stateless_call(self.unravel(theta), others, inputs, training=True)
        logits = logits.reshape(passes, *target.shape, -1)
        total = jax.nn.logsumexp(logits, axis=-1)
        is_label = jnp.arange(logits.shape[-1]) == target[None, ..., None]  # no gather: it fuses
        label = jnp.where(is_label, logits, 0).sum(-1)
        smoothing = hyper["label_smoothing"]
        losses = total - (1 - smoothing) * label - smoothing * logits.mean(-1)
        losses = losses.mean(0)
        if passes == 2:
            p, q = logits - total[..., None]
            divergence = ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(-1)
            losses += hyper["rdrop"] / 4 * divergence
        weights = target != PAD
        return (losses * weights).sum() / weights.sum()

    def translate(self, name, weights, beams):
        """Generates ids (variants, B, LIMIT) by beam search; by greedy search if `beams` is 1."""
        import jax

        if beams not in self._decoders:
            search = functools.partial(self._search, beams=beams)
            self._decoders[beams] = jax.jit(jax.vmap(search, in_axes=(0, None)))
        rows = len(self.data.ids["valid_source"])
        source = self.data.ids[f"{name}_source"].astype("int32")
        padded = np.full((rows, LIMIT), PAD)  # one shape for all texts
        padded[: len(source), : source.shape[1]] = source
        padded[len(source) :, 0] = END
        return np.asarray(self._decoders[beams](weights, padded))[:, : len(source)]

    def _search(self, theta, source, beams):
        import jax
        import keras
        from jax import numpy as jnp

        model, size = self.model, self.model.target_vocabulary_size
        mapping = list(zip(model.trainable_variables, self.unravel(theta), strict=True))
        rows = len(source)
        with keras.StatelessScope(state_mapping=mapping):
            state = model.initial_state(source, length=LIMIT)
            state = jax.tree.map(lambda x: jnp.repeat(x, beams, axis=0), state)

            def step(position, carry):
                ids, output, scores, state, best, best_score = carry
                logits, state = model.step(ids.reshape(-1), position, state)
                logp = jax.nn.log_softmax(logits).reshape(rows, beams, size)
                penalty = ((5.0 + position + 1) / 6.0) ** ALPHA
                ended = (scores + logp[..., END]) / penalty
                choice = ended.argmax(1)
                winner = ended.max(1)
                complete = output[jnp.arange(rows), choice].at[:, position].set(END)
                better = winner > best_score
                best = jnp.where(better[:, None], complete, best)
                best_score = jnp.maximum(winner, best_score)
                total = scores[..., None] + logp.at[..., END].set(-jnp.inf).at[..., PAD].set(
                    -jnp.inf
                )
                scores, flat = jax.lax.top_k(total.reshape(rows, -1), beams)
                parent, ids = flat // size, flat % size
                output = jnp.take_along_axis(output, parent[..., None], axis=1)
                output = output.at[:, :, position].set(ids)
                picked = (jnp.arange(rows)[:, None] * beams + parent).reshape(-1)
                state = jax.tree.map(lambda x: x[picked], state)
                return ids, output, scores, state, best, best_score

            ids = jnp.full((rows, beams), START)
            scores = jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf) * jnp.ones((rows, 1))
            output = jnp.zeros((rows, beams, LIMIT), ids.dtype)
            best = jnp.full((rows,), -jnp.inf)
            carry = (ids, output, scores, state, output[:, 0], best)
            if beams > 1:
                return jax.lax.fori_loop(0, LIMIT, step, carry)[4]
            return jax.lax.fori_loop(0, LIMIT, self._greedy(model, size), carry)[1][:, 0]

    def _greedy(self, model, size):
        def step(position, carry):
            ids, output, *others, state, best, score = carry
            logits, state = model.step(ids.reshape(-1), position, state)
            ids = logits.at[..., PAD].set(-1e9).argmax(-1)[:, None]
            return ids, output.at[:, 0, position].set(ids[:, 0]), *others, state, best, score

        return step


def train(job, data, deadline):
    """Trains one job; returns its results by variant, and the weights of the best checkpoints."""
    started = time.time()
    trainer = Trainer(job, data)
    results = [{"history": []} | variant for variant in trainer.variants]
    best = {}  # (variant, budget): (BLEU, step, weights)
    batches, number, began = data.batches(1), 0, None
    while number < job["steps"] and time.time() < deadline:
        losses = trainer.step(number, *next(batches))
        number += 1
        if number == 100:
            losses.block_until_ready()
            began = time.time()
        if (number % EVERY == 0 and number >= FIRST) or number == job["steps"]:
            losses, weights = np.asarray(losses), np.asarray(trainer.state["ema"])
            outputs = trainer.translate("valid", trainer.state["ema"], 1)
            for i, result in enumerate(results):
                bleu = data.bleu("valid", outputs[i])
                result["history"].append([number, round(float(losses[i]), 3), round(bleu, 2)])
                for budget in {min(BUDGET, job["steps"]), job["steps"]}:
                    if number <= budget and bleu > best.get((i, budget), (-1,))[0]:
                        best[i, budget] = bleu, number, weights[i]
            print(job["name"], number, [r["history"][-1][1:] for r in results], flush=True)
    seconds = time.time() - (began or started)
    kept = []
    for budget in sorted({budget for _, budget in best}):
        chosen = [best[i, budget] for i in range(len(results))]
        stacked = np.stack([weights for _, _, weights in chosen])
        outputs = {name: trainer.translate(name, stacked, BEAMS) for name in ("valid", "test")}
        for i, result in enumerate(results):
            scores = {name: round(data.bleu(name, ids[i]), 2) for name, ids in outputs.items()}
            result[str(budget)] = scores | {"step": chosen[i][1], "greedy": round(chosen[i][0], 2)}
            kept.append((scores["valid"], f"{job['name']}/{i}/{budget}", stacked[i]))
    summary = {
        "parameters": trainer.parameters,
        "ms_per_step": seconds * 1000 / max(1, number - 100),
    }
    names = ("name", "vocabulary", "data", "model")
    return {k: job[k] for k in names if k in job} | summary | {
        "seconds": time.time() - started,
        "results": results,
    }, kept


def _work(folder, queue, deadline, answers):
    while True:
        job = queue.get()
        if job is None or time.time() > deadline - 60:
            break
        try:
            name = job.get("data", job["vocabulary"])
            data = Data(folder, name, job.get("bidirectional_steps", 0))
            answers.put(train(job, data, deadline))
        except Exception as error:
            print(job["name"], "failed:", repr(error)[:500], flush=True)
    answers.put(None)


def run(folder, jobs, output, seconds, processes):
    """Trains all jobs that fit into the time, in several processes."""
    deadline = time.time() + float(seconds) - 45  # for the last translations
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # Tuning every product would take longer than the trainings.
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    context = multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    with open(jobs) as file:
        for job in json.load(file):
            queue.put(job)
    workers = []
    for _ in range(int(processes)):
        queue.put(None)
        workers.append(context.Process(target=_work, args=(folder, queue, deadline, answers)))
        workers[-1].start()
    os.makedirs(output, exist_ok=True)
    done, kept, left = [], [], len(workers)
    while left:
        answer = answers.get()
        if answer is None:
            left -= 1
            continue
        done.append(answer[0])
        kept = sorted([*kept, *answer[1]], key=lambda one: -one[0])[:WEIGHTS_KEPT]
        with open(f"{output}/results.json", "w") as file:
            json.dump(done, file)
        for number in range(0, len(kept), 3):
            some = {key.replace("/", "|"): weights for _, key, weights in kept[number : number + 3]}
            np.savez(
                f"{output}/weights{number // 3}.npz",
                **{k: v.astype("float16") for k, v in some.items()},
            )
    table(output)


def table(output):
    """Prints a Markdown table of all results; greedy BLEU on the validation set by steps."""
    print("| recipe | weights | seed | 1,000 | 2,500 | best | step | beam 5 | test | ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for job in _results(output):
        for result in job["results"]:
            changes = " ".join(f"{k}={result[k]}" for k, v in PRESET.items() if result[k] != v)
            history = {step: bleu for step, _, bleu in result["history"]}
            for budget in [key for key in result if key.isdigit()]:
                one = result[budget]
                print(
                    f"| {job['name']} {changes} | {job['parameters']:,} | {result['seed']} | "
                    f"{history.get(1000, '')} | {history.get(2500, '')} | {one['greedy']} | "
                    f"{one['step']} of {budget} | {one['valid']} | {one['test']} | "
                    f"{job['ms_per_step']:.1f} |"
                )
    sys.stdout.flush()


def _results(output):
    with open(f"{output}/results.json") as file:
        return json.load(file)


def translate(folder, output):
    """Prints BLEU of the stored models, whose translations are `Translator`'s, for two α."""
    from keras_transformer.translation.corpus_scores import corpus_scores

    jobs = {job["name"]: job for job in _results(output)}
    search = {"beam_size": BEAMS, "beam_patience": float("inf"), "max_output_length": LIMIT}
    print("| recipe, variant, budget | length penalty | validation | test |")
    print("|---|---|---|---|")
    for path in sorted(glob.glob(f"{output}/weights*.npz")):
        for key, weights in np.load(path).items():
            job = jobs[key.rsplit("|", 2)[0]]
            arrays = np.load(f"{folder}/{job.get('data', job['vocabulary'])}.npz")
            translator = _translator(job, weights, bytes(arrays["model"]))
            for alpha in ALPHAS:
                scores = []
                for part in ("valid", "test"):
                    source, target = (
                        _lines(PARTS[part], side, str(arrays["corpus"])) for side in ("en", "de")
                    )
                    answers = translator.translate(source, length_penalty=alpha, **search)
                    scores.append(corpus_scores(answers, target, str(arrays["bleu_tokenize"])))
                bleu = " | ".join(f"{score['bleu']:.2f}" for score in scores)
                print(f"| {key.replace('|', ', ')} | {alpha} | {bleu} |", flush=True)


def _translator(job, weights, vocabulary):
    from keras_transformer import SubwordTokenizer, Translator

    model = _build(job, "float32")
    variables = model.trainable_variables
    ends = np.cumsum([np.prod(variable.shape) for variable in variables])
    for variable, value in zip(variables, np.split(weights, ends[:-1]), strict=True):
        variable.assign(value.reshape(variable.shape))
    tokenizer = SubwordTokenizer(vocabulary)
    return Translator(model, tokenizer, tokenizer)


if __name__ == "__main__":
    commands = {"prepare": prepare, "run": run, "table": table, "translate": translate}
    commands[sys.argv[1]](*sys.argv[2:])
