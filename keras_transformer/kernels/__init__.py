"""The numbers of the layers, computed faster: tuning lives here, not in the paper's layers."""
