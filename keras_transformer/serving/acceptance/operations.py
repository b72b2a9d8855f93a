"""stub"""

SAVER = frozenset({"MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"})
OURS = frozenset()
