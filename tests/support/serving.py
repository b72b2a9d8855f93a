"""Runs an exported version directory the way TF Serving would."""

from keras_transformer.serving.server_process import ServerProcess


def run_through_c_api(version_dir, batches):
    """Sends batches to `serving_default`, one after the other.

    Args:
        version_dir: path of the directory that holds saved_model.pb.
        batches: a list of inputs, each a list of rows of str or bytes. A bare row is sent as a
            tensor of rank 0, a list of lists of rows as one of rank 2.

    Returns:
        A list with one dictionary per batch: the outputs by name, as nested lists; or
        {"error": message} when that batch failed.
    """
    with ServerProcess(version_dir) as server:
        return [server.predict(batch) for batch in batches]
