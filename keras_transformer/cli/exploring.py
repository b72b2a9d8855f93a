"""The command `explore`."""

import sys

import tyro


def explore(path: tyro.conf.Positional[str], port: int = 0, no_browser: bool = False) -> None:
    """Open a local page that shows how a model translates: alternatives, attention, variants.

    One types a sentence and sees its translation, the n best and some drawn ones, what each token
    attends to by layer and head, and what else might have been written instead of it: choosing
    that, the translation goes on from there. The address is printed; it holds a secret token, and
    this machine alone can reach it. Ctrl-C ends it.

    Args:
        path: A run directory; or a SavedModel (its version directory, or the one above), best one
            exported with explore, beam and sample among --signatures.
        port: Where to listen on this machine; 0: wherever it is free.
        no_browser: Print the address only, and open no browser.
    """
    from keras_transformer.cli.text import set_threads
    from keras_transformer.visualization.explorer.explorer_server import listen
    from keras_transformer.visualization.explorer.opening import open_explorer

    with listen(port) as listening:
        (model,) = set_threads(path)
        explorer = open_explorer(model, listening)
        print(explorer.address, flush=True)
        print("Ctrl-C ends the explorer.", file=sys.stderr)
        explorer.run(browser=not no_browser)
