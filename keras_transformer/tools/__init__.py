"""Pictures, importers, the explorer and CTranslate2: no training and no serving needs them."""
