"""Models of other systems as runs: Marian, from Hugging Face and from OPUS-MT, and OpenNMT-tf."""
