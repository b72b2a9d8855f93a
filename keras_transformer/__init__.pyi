"""The public names, for type checkers and editors; `__init__.py` imports them lazily.

To add one, add its import, `from keras_transformer.MODULE import NAME as NAME`, and its name there.
"""

from keras_transformer.data.dataset import make_dataset as make_dataset
from keras_transformer.data.prepared_corpus import PreparedCorpus as PreparedCorpus
from keras_transformer.data.text_files import read_pairs as read_pairs
from keras_transformer.decoding.beam import beam_search as beam_search
from keras_transformer.decoding.beam import search as search
from keras_transformer.decoding.sampling import greedy_search as greedy_search
from keras_transformer.decoding.sampling import sample as sample
from keras_transformer.kernels.tensorflow.machine import configure_threads as configure_threads
from keras_transformer.kernels.tensorflow.machine import inter_op_threads as inter_op_threads
from keras_transformer.layers.attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.layers.attention import dot_product_attention as dot_product_attention
from keras_transformer.layers.decoder import Decoder as Decoder
from keras_transformer.layers.decoder import DecoderLayer as DecoderLayer
from keras_transformer.layers.encoder import Encoder as Encoder
from keras_transformer.layers.encoder import EncoderLayer as EncoderLayer
from keras_transformer.layers.masks import causal_mask as causal_mask
from keras_transformer.layers.masks import combine as combine
from keras_transformer.layers.masks import key_mask as key_mask
from keras_transformer.layers.masks import padding_mask as padding_mask
from keras_transformer.layers.positional_embedding import PositionalEmbedding as PositionalEmbedding
from keras_transformer.layers.positional_embedding import sinusoidal_encoding as sinusoidal_encoding
from keras_transformer.layers.positions import BucketedPositions as BucketedPositions
from keras_transformer.layers.positions import DisentangledPositions as DisentangledPositions
from keras_transformer.layers.positions import Positions as Positions
from keras_transformer.layers.positions import RelativePositions as RelativePositions
from keras_transformer.layers.positions import RotaryPositions as RotaryPositions
from keras_transformer.layers.stack import FeedForward as FeedForward
from keras_transformer.presets import PRESETS as PRESETS
from keras_transformer.presets import ExportConfig as ExportConfig
from keras_transformer.presets import ModelConfig as ModelConfig
from keras_transformer.presets import PrepareConfig as PrepareConfig
from keras_transformer.presets import SearchConfig as SearchConfig
from keras_transformer.presets import TrainConfig as TrainConfig
from keras_transformer.presets import get_preset as get_preset
from keras_transformer.runs.averaging import average_checkpoints as average_checkpoints
from keras_transformer.runs.opening import load as load
from keras_transformer.runs.resume_training import ResumeTraining as ResumeTraining
from keras_transformer.runs.training_data import prepare as prepare
from keras_transformer.runs.validation import EMAValidation as EMAValidation
from keras_transformer.runs.validation import TranslationScores as TranslationScores
from keras_transformer.runs.validation import ema_weights as ema_weights
from keras_transformer.serving.saved_model import export as export
from keras_transformer.serving.saved_model import load_saved_model as load_saved_model
from keras_transformer.serving.structure import check_structure as check_structure
from keras_transformer.serving.trial import check as check
from keras_transformer.special_ids import END as END
from keras_transformer.special_ids import PAD as PAD
from keras_transformer.special_ids import START as START
from keras_transformer.special_ids import UNK as UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer as SubwordTokenizer
from keras_transformer.tokenizers.tokenizer import Tokenizer as Tokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer as WordPieceTokenizer
from keras_transformer.tools.ctranslate2 import export_ctranslate2 as export_ctranslate2
from keras_transformer.tools.curves import plot_history as plot_history
from keras_transformer.tools.curves import plot_learning_rate as plot_learning_rate
from keras_transformer.tools.curves import plot_position_encoding as plot_position_encoding
from keras_transformer.tools.curves import plot_run as plot_run
from keras_transformer.tools.curves import plot_runs as plot_runs
from keras_transformer.tools.curves import save_run_plot as save_run_plot
from keras_transformer.tools.importers.importing import import_model as import_model
from keras_transformer.tools.plots import plot_alignment as plot_alignment
from keras_transformer.tools.plots import plot_attention as plot_attention
from keras_transformer.tools.plots import (
    plot_token_probabilities as plot_token_probabilities,
)
from keras_transformer.training.distribution import make_strategy as make_strategy
from keras_transformer.training.losses import MaskedAccuracy as MaskedAccuracy
from keras_transformer.training.losses import Perplexity as Perplexity
from keras_transformer.training.losses import SmoothedCrossEntropy as SmoothedCrossEntropy
from keras_transformer.training.losses import TargetTokens as TargetTokens
from keras_transformer.training.optimizer import EMAAdam as EMAAdam
from keras_transformer.training.optimizer import StopOnDivergence as StopOnDivergence
from keras_transformer.training.optimizer import WarmupInverseSqrt as WarmupInverseSqrt
from keras_transformer.training.token_trainer import TokenTrainer as TokenTrainer
from keras_transformer.training.word_vectors import Coverage as Coverage
from keras_transformer.training.word_vectors import (
    initialize_embeddings as initialize_embeddings,
)
from keras_transformer.transformer import Transformer as Transformer
from keras_transformer.translation.inspection import attention_maps as attention_maps
from keras_transformer.translation.inspection import token_probabilities as token_probabilities
from keras_transformer.translation.translator import Translator as Translator

__version__: str
OPTIONAL: dict[str, str]
LIGHT: str

def explain_missing(what: str, error: ModuleNotFoundError) -> str | None: ...
