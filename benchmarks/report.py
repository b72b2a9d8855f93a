"""Tables, bars and pictures of what was measured."""

from benchmarks.shapes import SHAPES


def table(timings):
    """Median, spread, first call and memory of each system, as Markdown; times also as multiples of
    the topmost one's."""
    lines = [
        "| system | median ms | spread | ÷ first | first call s | MiB |",
        "|---|---|---|---|---|---|",
    ]
    first = timings[0].median if timings else 1
    for timing in timings:
        low, high = 1e3 * min(timing.seconds), 1e3 * max(timing.seconds)
        lines.append(
            f"| {timing.name} | {1e3 * timing.median:.1f} | {low:.1f}–{high:.1f} "
            f"| {timing.median / first:.2f} | {timing.first:.1f} | {timing.memory} |"
        )
        if timing.result is not None:
            lines[-1] += f" {timing.result} |"  # what the system counted
    return "\n".join(lines)


def bars(results, shapes):
    """What has to be reached and what was, as Markdown: ratios above 1 say that we are faster.

    Args:
        results: {title: list of `Timing`}.
        shapes: Names of `SHAPES`.
    """
    lines = ["| work | against | at least | reached | ours |", "|---|---|---|---|---|"]
    for shape in shapes:
        lines += _training_bars(shape, _Found(results.get(f"training step, {shape}", ())))
        found = _Found(results.get(f"cores apart or together, {shape}", ()))
        lines += _cores_bars(shape, found)
        found = _Found(results.get(f"R-Drop, {shape}", ()))  # twice the passes
        apart, twice = "ours, float32, graph, as the command", "ours, float32, R-Drop"
        lines += found.bar(f"train, {shape}, float32, R-Drop 1", apart, 0.48, twice)
        for rows in (1, 32):
            found = _Found(results.get(f"greedy, {shape}, batch {rows}", ()))
            lines += _decoding_bars(f"{shape}, batch {rows}", shape, rows, found)
        found = _Found(results.get(f"beam 4, {shape}, batch 32", ()))
        for ours in ("ours in memory", "ours exported"):
            work = f"● beam 4, {shape}, batch 32, {ours[5:]}"
            lines += found.bar(work, "CTranslate2 float32", 0.7, ours)
    for rows in (1, 32):
        for beam_size in (1, 4):
            work = f"imported, beam {beam_size}, batch {rows}"
            found = _Found(results.get(work, ()))
            for ours, float32 in (("ours in memory", (1.0, 0.7)), ("ours exported", (0.8, 0.5))):
                bar = float32[0] if rows == 32 else float32[1]
                lines += found.bar(f"{work}, {ours[5:]}", "CTranslate2 float32", bar, ours)
                lines += found.bar(f"{work}, {ours[5:]}", "CTranslate2 int8", None, ours)
            if rows == 32:
                lines += found.bar(work, "Hugging Face Marian", 3.0, "ours in memory")
    for beam_size in (1, 5):
        work = f"text to text, beam {beam_size}"
        found = _Found(results.get(f"Multi30k test, {work}", ()))
        for ours in ("ours in memory", "ours exported"):
            lines += found.bar(f"{work}, {ours[5:]}", "CTranslate2 float32", None, ours)
    return "\n".join(lines)


def _training_bars(shape, found):
    work = f"train, {shape}"
    single = "ours, float32"
    lines = found.bar(f"● {work}, float32", "PyTorch nn.Transformer", 1.6, single)
    lines += found.bar(f"● {work}, any precision", "KerasHub layers", 1.1, "ours")
    lines += found.bar(f"{work}, any precision", "Hugging Face Marian", None, "ours")
    lines += found.bar(f"{work}, any precision", "OpenNMT-tf", 1.0, "ours")
    lines += _share_of_peak(f"● {work}", shape, found, single, 0.85)
    return lines + found.bar(f"{work}, mixed_bfloat16", single, 1.2, "ours, mixed_bfloat16")


def _cores_bars(shape, found):
    """What cores gain by working apart, and what the products alone come to, together."""
    apart, together = (
        f"ours, float32, graph, {how}" for how in ("as the command", "cores together")
    )
    lines = found.bar(f"train, {shape}, float32, cores apart", together, None, apart)
    for how in ("graph, in a script", "graph, cores apart, TensorFlow's oneDNN"):
        against = f"ours, float32, {how}"
        lines += found.bar(f"train, {shape}, float32, as the command", against, None, apart)
    for work, name in (("apart", apart), ("together", together), ("products alone", "products")):
        lines += _share_of_peak(f"train, {shape}, {work}", shape, found, name, "")
    return lines


def _share_of_peak(work, shape, found, ours, at_least):
    ours, product = found.best(ours), found.best("2048³")
    if not ours or not product:
        return []
    speed = SHAPES[shape].training_flops() / ours.median
    peak = 2 * 2048**3 / product.median
    against = f"matrix products, {peak / 1e9:.0f} GF/s"
    return [f"| {work}, float32 | {against} | {at_least} | {speed / peak:.2f} | {ours.name} |"]


def _decoding_bars(work, shape, rows, found):
    """Only what users get unasked bears a ●: `translate`, and an export served as advised."""
    memory, exported, peer = "ours in memory", "ours exported", "CTranslate2 float32"
    lines = found.bar(f"decode exported, {work}", "OpenNMT-tf exported", 1.2, exported)
    at_least = {1: (0.4, 0.35), 32: (0.8, 0.8)}[rows]
    for name, ours, bar in zip(
        ("in memory", "exported"), (memory, exported), at_least, strict=True
    ):
        lines += found.bar(f"● decode {name}, {work}", peer, bar, ours)
    for ours in (
        "in a script",
        "XLA in a script",
        "exported, all",
        "exported, Tensor",
        "exported in",
    ):
        lines += found.bar(f"decode otherwise, {work}", peer, None, ours)
    if rows == 1:
        return lines
    lines += found.bar(f"decode in memory, {work}", "CTranslate2 int8", None, memory)
    lines += found.bar(f"● decode, {work}", "no cache, one by one", 10, memory)
    return lines + found.bar(f"● decode, {work}", "Hugging Face Marian", 2, memory)


class _Found:
    """The timings of one comparison, by how their names begin."""

    def __init__(self, timings):
        self.timings = timings

    def best(self, start):
        found = [timing for timing in self.timings if timing.name.startswith(start)]
        return min(found, key=lambda timing: timing.median, default=None)

    def bar(self, work, against, at_least, ours):
        """One line of the table; none where one of the two was not measured."""
        best, other = self.best(ours), self.best(against)
        if not best or not other:
            return []
        ratio = f"{other.median / best.median:.2f}"
        return [f"| {work} | {against} | {at_least or ''} | {ratio} | {best.name} |"]


def plot_scaling(results, path):
    """Draws time and memory against source length, target length and batch size."""
    from matplotlib.figure import Figure

    titles = [title for title in results if title.startswith(("source", "target l", "batch"))]
    figure = Figure(figsize=(12, 7), layout="constrained")
    axes = figure.subplots(2, 3)
    for title in titles:
        axis, shape = title.split(", ")
        column = ("source length", "target length", "batch size").index(axis)
        values = [int(timing.name) for timing in results[title]]
        seconds = [timing.median for timing in results[title]]
        memory = [timing.memory for timing in results[title]]
        axes[0][column].plot(values, seconds, marker="o", label=shape)
        axes[1][column].plot(values, memory, marker="o", label=shape)
        what = "encode 4 sentences" if axis == "source length" else "decode greedily"
        axes[0][column].set_title(what)
        for row, label in enumerate(("seconds", "MiB at most")):
            axes[row][column].set(xlabel=axis, ylabel=label)
    for axes_of_row in axes:
        for one in axes_of_row:
            one.set_ylim(0, 1.1 * max(max(line.get_ydata()) for line in one.lines))
            one.grid(alpha=0.3)
            one.legend()
    figure.savefig(path, dpi=120)
    return path
