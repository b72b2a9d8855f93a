"""Which embeddings may be frozen; needs no Keras, for it is asked before that is loaded."""


def check_frozen_vectors(side: str, share_embeddings: str) -> None:
    """Refuses to freeze the embeddings of a side where their matrix is the softmax's too.

    Raises:
        ValueError: If it is.
    """
    if share_embeddings == "all" or (side, share_embeddings) == ("target", "target"):
        apart = "target" if side == "source" else "none"
        raise ValueError(
            f"--freeze-vectors would freeze the softmax, which shares the matrix of the {side} "
            f"embeddings (share_embeddings={share_embeddings}): give --share-embeddings {apart}."
        )
