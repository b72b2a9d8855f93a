"""What users would take instead, for the same sizes: `make bench` times these beside ours.

Every function imports its library itself, so that what is not installed is left out alone.
"""

import os

import numpy as np

from benchmarks.shapes import SHAPES

LABEL_SMOOTHING = 0.1


def keras_hub_training(shape, steps=1):
    """KerasHub's layers as its guides put them together, `model.fit` in one call, float32.

    Keras' cross-entropy of integer labels has no label smoothing, so this one does less.
    """
    import keras
    import keras_nlp

    from benchmarks.timed_fit import TimedFit

    shape = SHAPES[shape]
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    embedding = keras_nlp.layers.ReversibleEmbedding(
        shape.vocabulary, shape.d_model, tie_weights=True, mask_zero=True
    )
    positions = keras_nlp.layers.SinePositionEncoding()
    sizes = dict(intermediate_dim=shape.d_ff, num_heads=shape.heads, dropout=shape.dropout)

    def embed(ids):
        x = embedding(ids)
        return x + positions(x)

    memory, x = embed(source), embed(target)
    for _ in range(shape.layers):
        memory = keras_nlp.layers.TransformerEncoder(**sizes)(memory)
    for _ in range(shape.layers):
        x = keras_nlp.layers.TransformerDecoder(**sizes)(x, memory)
    model = keras.Model((source, target), embedding(x, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    how = dict(jit_compile=False, steps_per_execution=steps)
    model.compile(keras.optimizers.Adam(1e-4), loss, **how)
    return TimedFit(model, shape.dataset(steps))


def pytorch_training(shape, steps=1, precision="float32", compiled=False):
    """`torch.nn.Transformer` with shared embeddings and label-smoothed cross-entropy.

    On the GPU, if PyTorch finds one; in bfloat16 by autocast.
    """
    import torch

    torch.manual_seed(0)
    shape, device = SHAPES[shape], _pytorch_device()
    embedding = torch.nn.Embedding(shape.vocabulary, shape.d_model, padding_idx=0).to(device)
    transformer = torch.nn.Transformer(
        shape.d_model,
        shape.heads,
        shape.layers,
        shape.layers,
        shape.d_ff,
        shape.dropout,
        batch_first=True,
    ).to(device)
    positions = torch.from_numpy(_positions(shape.length, shape.d_model)).to(device)
    dropout = torch.nn.Dropout(shape.dropout)
    parameters = [*embedding.parameters(), *transformer.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-4, fused=device == "cuda")
    batch = [torch.from_numpy(x.astype("int64")).to(device) for x in shape.batch()]
    causal = torch.nn.Transformer.generate_square_subsequent_mask(shape.length).isinf().to(device)

    def embed(ids):
        return dropout(embedding(ids) * shape.d_model**0.5 + positions)

    def compute_loss(source, target_in, target_out):
        padding = source == 0
        x = transformer(
            embed(source),
            embed(target_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = x.flatten(0, 1) @ embedding.weight.T
        return torch.nn.functional.cross_entropy(
            logits, target_out.flatten(), ignore_index=0, label_smoothing=LABEL_SMOOTHING
        )

    if compiled:
        compute_loss = torch.compile(compute_loss, dynamic=False)

    def fit():
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=precision != "float32"):
                loss = compute_loss(*batch)
            loss.backward()
            optimizer.step()
        loss.item()  # waits for a GPU

    return fit


def marian_training(shape, steps=1):
    """Hugging Face's Marian in PyTorch, label-smoothed cross-entropy, float32."""
    import torch

    shape = SHAPES[shape]
    model = _marian(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    source, target_in, target_out = (torch.from_numpy(x.astype("int64")) for x in shape.batch())

    def fit():
        for _ in range(steps):
            optimizer.zero_grad()
            mask = (source != 0).long()
            logits = model(source, attention_mask=mask, decoder_input_ids=target_in).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1),
                target_out.flatten(),
                ignore_index=0,
                label_smoothing=LABEL_SMOOTHING,
            )
            loss.backward()
            optimizer.step()

    return fit


def marian_decoding(shape, rows, beam_size=1, precision="float32"):
    """`generate` of the same, on the GPU, if PyTorch finds one."""
    import torch

    shape, device = SHAPES[shape], _pytorch_device()
    model = _marian(shape).eval().to(device, getattr(torch, precision))
    source = torch.from_numpy(shape.ids(rows, shape.steps, 2).astype("int64")).to(device)

    def generate():
        found = model.generate(
            source,
            attention_mask=(source != 0).long(),
            num_beams=beam_size,
            do_sample=False,
            min_new_tokens=shape.steps,
            max_new_tokens=shape.steps,
        )
        if found.shape != (rows, shape.steps + 1):  # START is returned too
            raise RuntimeError(f"Expected {rows} × {shape.steps} tokens, got {found.shape}.")

    return generate


def ctranslate2_decoding(shape, rows, beam_size=1, compute_type="float32", threads=None):
    """CTranslate2 with our weights, pieces to pieces."""
    import tempfile

    import ctranslate2

    import keras_transformer as kt
    from benchmarks.ours import make_model
    from benchmarks.vocabulary import synthetic_tokenizer
    from keras_transformer.tools.ctranslate2 import export_ctranslate2

    shape = SHAPES[shape]
    tokenizer = synthetic_tokenizer(shape.vocabulary)
    translator = kt.Translator(make_model(shape), tokenizer, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = export_ctranslate2(translator, os.path.join(folder, "model"))
        engine = ctranslate2.Translator(
            path, compute_type=compute_type, intra_threads=threads or os.cpu_count()
        )
    ids = shape.ids(rows, shape.steps, 2)[:, :-1]  # END is added
    source = [[piece.decode() for piece in row] for row in tokenizer.pieces(ids).numpy()]

    def translate():
        results = engine.translate_batch(
            source,
            beam_size=beam_size,
            min_decoding_length=shape.steps,
            max_decoding_length=shape.steps,
        )
        if any(len(result.hypotheses[0]) != shape.steps for result in results):
            raise RuntimeError(f"Expected {shape.steps} tokens of each sentence.")

    return translate


def pytorch_product(size, precision="float32", repetitions=10):
    """The largest matrix products of a GPU."""
    import torch

    x = torch.randn(size, size, device=_pytorch_device(), dtype=getattr(torch, precision))

    def multiply():
        for _ in range(repetitions):
            product = x @ x
        product[0, 0].item()

    return multiply


def _pytorch_device():
    import torch

    torch.set_num_threads(os.cpu_count())
    torch.backends.cuda.matmul.allow_tf32 = True
    return "cuda" if torch.cuda.is_available() else "cpu"


def _marian(shape):
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.d_model,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        dropout=shape.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="swish" if shape.marian else "relu",
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
        max_position_embeddings=512,
    )
    return MarianMTModel(config)


def _positions(length, width):
    """Sines and cosines, float32 `(length, width)`."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width).astype("float32")
