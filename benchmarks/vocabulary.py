"""A vocabulary of any size without a corpus: the words w4, w5, …, one id each."""

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer


def synthetic_tokenizer(size):
    """A `SubwordTokenizer` of `size` ids, special ones included."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = model.SentencePiece
    special = {"<pad>": kinds.CONTROL, "<unk>": kinds.UNKNOWN, "<s>": kinds.CONTROL}
    special["</s>"] = kinds.CONTROL
    for piece, kind in special.items():
        model.pieces.add(piece=piece, score=0.0, type=kind)
    for number in range(len(special), size):
        model.pieces.add(piece=f"▁w{number}", score=-float(number))
    spec = model.trainer_spec
    spec.model_type = spec.WORD
    spec.vocab_size = size
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, START, END
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = special
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = True
    model.normalizer_spec.escape_whitespaces = True
    return SubwordTokenizer(model.SerializeToString())
