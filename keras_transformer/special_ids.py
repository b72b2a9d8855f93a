"""The four special ids that every vocabulary starts with; every module may import this one."""

PAD = 0  # padding; never attended to, never scored
UNK = 1  # unknown piece
START = 2  # the first input of the decoder
END = 3  # the end of every source and target

SUPPRESSED = -1000.0  # what the logit of an id that is never generated is lowered by, at most
