"""A stream of batches as the `tf.data.Dataset` that `model.fit` reads."""

import tensorflow as tf

from keras_transformer.data.batch_stream import BatchStream

AUTOTUNE = tf.data.AUTOTUNE


def stream_dataset(stream: BatchStream) -> tf.data.Dataset:
    """Makes the dataset that reads a stream, prepared ahead.

    Args:
        stream: `BatchStream`.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, whose attribute `stream` it is.
        Unless that repeats, it has a length, the stream's `batches_per_pass`.
    """
    ids, number = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int64)
    batches = tf.data.Dataset.from_generator(
        stream.started, output_signature=(((ids, ids), ids), number)
    )

    def end(iterator):
        stream.end(int(iterator))
        return iterator

    def hand_out(batch, iterator):
        # Not where batches are prepared, ahead of their turn: the last one may never be taken.
        ended = tf.cond(
            iterator < 0, lambda: iterator, lambda: tf.numpy_function(end, [iterator], tf.int64)
        )
        with tf.control_dependencies([ended]):
            return tf.nest.map_structure(tf.identity, batch)

    dataset = prefetch(batches).map(hand_out)
    if not stream.repeat:
        length = tf.data.experimental.assert_cardinality(stream.batches_per_pass)
        dataset = dataset.apply(length)
    options = tf.data.Options()
    # Workers of a strategy read shards of each batch (`shard`), not each some of the batches.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.with_options(options)
    dataset.stream = stream
    return dataset


def prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches ahead of their turn.

    TensorFlow's tuner of pipelines is left off. It looks at a pipeline after 10 ms, and then waits
    twice as long each time; a pipeline that ends waits for it to look once more, which may take as
    long again as all the batches did.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(AUTOTUNE).with_options(options)
