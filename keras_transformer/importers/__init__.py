"""Models of other systems as runs: Marian from Hugging Face and OPUS-MT, and OpenNMT-tf."""
