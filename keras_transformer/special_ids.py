"""The four ids that every vocabulary starts with; the one module that everybody may import."""

PAD = 0  # fills a batch up; never attended to, never scored
UNK = 1  # a piece that the vocabulary does not have
START = 2  # what the decoder reads first
END = 3  # closes every source and every target
