"""Keras' own tests of its attention layer, with ours in its place.

The file comes with Keras. What passes of it and why the rest does not is written down here; the
test fails where the table says something else than what happens.
"""

import importlib.util
import pathlib
import re
import types
import unittest

import keras
import pytest

import keras_transformer as kt

FILE = pathlib.Path(keras.__file__).parent / "src/layers/attention/multi_head_attention_test.py"

# Why a test cannot pass, and by what in its error one knows that it does not for that reason.
AXES = ("inputs of another rank than 3", "attention_axes|expected ndim=3")
GATE = ("a gate; what comes before it in the test passes", "Unrecognized keyword .*use_gate")
WINDOW = ("a sliding window", "Unrecognized keyword .*sliding_window")
OUTPUT = ("an output_shape of several axes", "values to unpack")
SENTENCE = ("refused by ours too, in another sentence", "does not match|ValueError not raised")
SHAPES = ("the output shape of inputs that do not fit, which only the call refuses", "not raised")
PRIVATE = (
    "reads or overrides what is private to Keras' layer; ours is named query_dense, attend",
    r"AttributeError: .* has no attribute '_\w+'|KeyError: 'mask_is_none'",
)
FLASH = ("skipped by itself: flash attention on TensorFlow", "Skipped: Flash|only supported on JAX")

NOT_PASSED = {
    "test_attention_axes_negative_indexing": AXES,
    "test_basics": GATE,
    "test_basics_with_flash_attention": FLASH,
    "test_causal_only_masks_non_4d_inputs": AXES,
    "test_causal_only_skipped_for_subclass": PRIVATE,
    "test_compute_attention_combines_causal_and_explicit_mask_fused_fallback": PRIVATE,
    "test_compute_attention_combines_causal_and_explicit_mask_manual_path": PRIVATE,
    "test_compute_output_shape_different_qv_last_dims": AXES,
    "test_compute_output_shape_high_dim_different_proj": OUTPUT,
    "test_compute_output_shape_high_dim_same_proj": AXES,
    "test_compute_output_shape_with_key_different_proj": OUTPUT,
    "test_compute_output_shape_without_key_different_proj": OUTPUT,
    "test_dtype_policy_map": PRIVATE,
    "test_flash_attention_with_errors": FLASH,
    "test_high_dim_attention_4d_inputs_1freebatch_mask2": AXES,
    "test_high_dim_attention_4d_inputs_1freebatch_mask3": AXES,
    "test_high_dim_attention_4d_inputs_1freebatch_mask4": AXES,
    "test_high_dim_attention_4d_inputs_2d_attention": AXES,
    "test_high_dim_attention_5d_inputs_2d_attention": AXES,
    "test_high_dim_attention_5d_inputs_2d_attention_fullmask": AXES,
    "test_initializer": GATE,
    "test_invalid_scalar_args_rejected": SENTENCE,
    "test_lora": GATE,
    "test_mha_constraints": GATE,
    "test_multi_head_attention_output_shape_as_tuple": OUTPUT,
    "test_multi_head_attention_output_shape_error": SENTENCE,
    "test_quantize_int8": PRIVATE,
    "test_shape_mismatch_error_key_value_dim_mismatch": SHAPES,
    "test_shape_mismatch_error_key_value_dim_mismatch_high_dim": SHAPES,
    "test_shape_mismatch_error_query_value_dim_mismatch": SHAPES,
    "test_sliding_window": WINDOW,
    "test_sliding_window_serialization": WINDOW,
}
PASSED = {
    "test_causal_only_fast_path",
    "test_causal_only_masks_when_fused_path_disabled_dropout_and_scores",
    "test_causal_only_masks_when_fused_path_disabled_dropout_only",
    "test_causal_only_masks_when_fused_path_disabled_scores_only",
    "test_causal_only_with_other_mask_falls_back",
    "test_compute_output_shape_with_key_same_proj",
    "test_compute_output_shape_without_key_same_proj",
    "test_correctness_disable_flash_attention",
    "test_correctness_enable_flash_attention",
    "test_masking_causal",
    "test_masking_not_causal",
    "test_masking_with_different_shapes",
    "test_multi_head_attention_output_shape_as_int",
    "test_no_warning_with_keras_mask",
    "test_query_mask_propagation",
    "test_sliding_window_validation",
    "test_symbolic_return_attention_scores0",
    "test_symbolic_return_attention_scores1",
}


@pytest.fixture
def case(pytestconfig):
    """Keras' class of tests, whose `layers.MultiHeadAttention` is ours."""
    pytestconfig.addinivalue_line("markers", "requires_trainable_backend: a mark of Keras' tests")
    spec = importlib.util.spec_from_file_location("keras_own_tests", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ours = {"MultiHeadAttention": kt.MultiHeadAttention}
    module.layers = types.SimpleNamespace(**vars(module.layers) | ours)
    yield module.MultiHeadAttentionTest
    # What those tests leave behind.
    keras.config.disable_flash_attention()
    keras.config.enable_traceback_filtering()


def error_of(case, name):
    """What keeps a test from passing; None where nothing does."""
    for mark in getattr(getattr(case, name), "pytestmark", []):
        if mark.name == "skipif" and mark.args[0]:
            return mark.kwargs["reason"]
    result = unittest.TestResult()
    case(name).run(result)
    return next((text for _, text in result.errors + result.failures), None)


@pytest.mark.skipif(not FILE.exists(), reason="this Keras comes without its tests")
def test_table(case):
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    assert set(names) == PASSED | set(NOT_PASSED)
    errors = {name: error_of(case, name) for name in names}
    unexpected = {name: error for name, error in errors.items() if error and name in PASSED}
    assert not unexpected, unexpected
    for name, (_, evidence) in NOT_PASSED.items():
        assert re.search(evidence, errors[name] or "it passes"), f"{name}: {errors[name]}"
