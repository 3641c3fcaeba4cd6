"""Text to token ids and back: vocabulary, special tokens, incremental decoding."""
